"""Devices and dtypes by name, and the number of torch threads."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from mechheads.errors import MechheadsError, unknown

from .huggingface import first_line

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}

SMALL = 20_000_000  # weights


def find_dtype(name: str | torch.dtype) -> torch.dtype:
    """The dtype of that name: "float32", "torch.float32" and torch.float32 are the same."""
    known = {str(value): value for value in DTYPES.values()} | DTYPES
    if str(name) not in known:
        raise unknown("dtype", str(name), DTYPES)
    return known[str(name)]


def find_device(device: str | None, n_devices: int) -> torch.device:
    """The device of that name, or the best one available."""
    cuda = torch.cuda.device_count()
    if n_devices < 1 or (n_devices > 1 and cuda < n_devices):
        raise MechheadsError(
            f"--n-devices takes 1, or up to the number of CUDA devices ({cuda}); got {n_devices}."
        )
    if device is None:
        best = "cuda" if cuda else "mps" if torch.backends.mps.is_available() else "cpu"
        return torch.device(best)
    try:
        place = torch.device(device)
        if place.type == "meta":
            raise RuntimeError("it holds no data")
        torch.empty(1, device=place)
    except (RuntimeError, AssertionError) as error:
        raise MechheadsError(
            f"Device {device!r} cannot be used ({first_line(error)}). Use cpu, or cuda, cuda:N "
            "or mps if available."
        ) from None
    return place


@contextmanager
def with_threads(count: int | None) -> Iterator[None]:
    """Compute with `count` threads (None: no change): sums of floats depend on the number."""
    if count is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def threads_to_check(model: Any) -> AbstractContextManager[None]:
    """While active, a small model computes on one thread: for checks, whose numbers are not kept.

    On a few tokens, waking other threads and waiting for them costs more than it saves.
    """
    return with_threads(1 if sum(p.numel() for p in model.parameters()) < SMALL else None)


def keep_freed_memory() -> None:
    """Let glibc reuse freed memory instead of returning it to the system.

    Patching keeps allocating and freeing the same large tensors, and getting them from the system
    again costs up to a third of its time. When a large block is freed, glibc raises the size up to
    which it keeps memory, up to 32 MB. This affects the whole process permanently, so commands call
    it and the library does not; call it yourself in a notebook.
    """
    torch.empty(31 << 20, dtype=torch.uint8)
