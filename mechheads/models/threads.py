"""How many threads torch computes with: sums of floats come out the same only with as many."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def with_threads(count: int | None) -> Iterator[None]:
    """So many threads while active; None leaves them as they are, and torch alone."""
    if count is None:
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
