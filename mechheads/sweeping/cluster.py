"""The same cells on a Ray cluster: Ray places, schedules and retries them.

Workers keep their models between cells. All nodes must see the sweep's folder. A worker or node
that dies takes its cell with it, which Ray then runs again elsewhere.
"""

import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import MechheadsError
from ..kept import keep_models
from .cells import Done, run_cell
from .grid import Cell


def on_cluster(address: str, cpus: float, gpus: float) -> "Any":
    """A runner on a cluster: `local` starts one on this machine, else the address of one."""
    ray = find_ray()

    def runner(cells: list[Cell], out: Path) -> Iterator[Done]:
        _connect(ray, address)
        task = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=5)(_run)
        place = str(out.resolve())
        waiting = {task.remote(cell, place, max(1, int(cpus))): cell for cell in cells}
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


def _run(cell: Cell, out: str, threads: int) -> Done:
    """In a worker, which keeps the models it has loaded."""
    import torch

    torch.set_num_threads(threads)
    keep_models()
    return run_cell(cell, Path(out))


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
