"""The same cells on a Ray cluster: Ray places, schedules and retries them.

Workers keep their models between cells. All nodes must see the sweep's folder. A worker or node
that dies takes its cell with it, which Ray then runs again elsewhere.
"""

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import methods
from ..errors import MechheadsError
from ..kept import keep_models
from .cells import Done, Runner, run_cell
from .grid import Cell

if TYPE_CHECKING:
    from ..effects import HeadEffects


def on_cluster(address: str, cpus: float, gpus: float, split: bool = False) -> Runner:
    """A runner on a cluster: `local` starts one on this machine, else the address of one.

    With `split`, the layers of a discover cell that patches are shared among the workers.
    """
    ray = find_ray()

    def runner(cells: list[Cell], out: Path) -> Iterator[Done]:
        _connect(ray, address)
        worker = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=5)
        manager = ray.remote(num_cpus=0, max_retries=5)(_share)
        place, threads = str(out.resolve()), max(1, int(cpus))
        waiting = {}
        for cell in cells:
            if split and _can_share(cell):
                ref = manager.remote(worker(_layer), worker(_run), cell, place, threads)
            else:
                ref = worker(_run).remote(cell, place, threads)
            waiting[ref] = cell
        try:
            while waiting:
                (ready,), _ = ray.wait(list(waiting), num_returns=1)
                cell = waiting.pop(ready)
                try:
                    yield ray.get(ready)
                except ray.exceptions.RayError as error:
                    first = str(error).strip().splitlines()[0]
                    yield Done(cell, f"the cluster gave it up ({first})", 0.0)
        finally:
            for ref in waiting:
                ray.cancel(ref, force=True)
            if address == "local":
                ray.shutdown()

    return runner


def _run(cell: Cell, out: str, threads: int, effects: "HeadEffects | None" = None) -> Done:
    """In a worker, which keeps the models it has loaded."""
    _prepare(threads)
    with methods.given(effects) if effects is not None else nullcontext():
        return run_cell(cell, Path(out))


def _layer(cell: Cell, layer: int | None, threads: int) -> Any:
    """In a worker: the effects of a layer's heads; without a layer, how many there are."""
    from ..discover import patch_layer

    _prepare(threads)
    return patch_layer(layer, dict(cell.settings))


def _share(layer: Any, run: Any, cell: Cell, out: str, threads: int) -> Done:
    """A discover cell whose layers are patched by many workers; one of them does the rest."""
    ray = find_ray()
    try:
        count = ray.get(layer.remote(cell, None, threads))
        parts = ray.get([layer.remote(cell, i, threads) for i in range(count)])
    except ray.exceptions.RayTaskError as error:
        return Done(cell, str(error.cause), 0.0)
    whole = replace(parts[0], values=sum(part.values for part in parts))
    return ray.get(run.remote(cell, out, threads, whole))


def _can_share(cell: Cell) -> bool:
    return cell.verb == "discover" and dict(cell.settings).get("method", "patch") == "patch"


def _prepare(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)
    keep_models()


def _connect(ray: Any, address: str) -> None:
    if ray.is_initialized():
        return
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    if address not in ("local", "auto"):
        _reach(address)
    options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    try:
        if address == "local":
            ray.init(include_dashboard=False, **options)
        else:
            ray.init(address=address, **options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        first = str(error).strip().splitlines()[0]
        raise MechheadsError(
            f"no Ray cluster at {address} ({first}). Start one with `ray start --head` and give "
            "its address, or --cluster local."
        ) from None


def _reach(address: str) -> None:
    """Ray would try for minutes to reach an address where nobody is."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except (OSError, ValueError) as error:
        raise MechheadsError(
            f"no Ray cluster at {address} ({error}). Start one with `ray start --head` and give "
            "its address, such as 10.0.0.1:6379, or --cluster local."
        ) from None


def find_ray() -> Any:
    """The library, or an error that says how to get it."""
    try:
        import ray
    except ModuleNotFoundError:
        raise MechheadsError(
            "--cluster needs Ray, which is not installed. Run: pip install 'mechheads[cluster]'"
        ) from None
    return ray
