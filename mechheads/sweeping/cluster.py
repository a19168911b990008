"""The same cells on a Ray cluster: Ray places, schedules and retries them.

Workers keep their models between cells. All nodes must see the sweep's folder. If a worker or node
dies, Ray reruns its cell elsewhere.
"""

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mechheads.errors import MechheadsError
from mechheads.jobs.run import Session
from mechheads.models.cache import ModelCache
from mechheads.packages import leave_working_directory
from mechheads.scoring.effects import HeadEffects

from .cells import Done, Runner, describe, finished, partial, run_cell
from .grid import Cell

if TYPE_CHECKING:
    from mechheads.engine.subset_table import SubsetTable

DEADLINE = 20.0  # seconds in which a cluster must answer
SETTINGS = b"\x04"  # the type of HTTP/2's settings frame
HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0" + SETTINGS + b"\0" * 5


@dataclass(frozen=True)
class Workplace:
    """What a worker needs: the sweep's folder, the base of relative paths, and its threads."""

    out: Path
    cwd: Path
    threads: int


def on_cluster(address: str, cpus: float = 1.0, gpus: float = 0.0, split: bool = False) -> Runner:
    """A runner on a cluster: at this address, or `local` to start one on this machine.

    With `split`, the workers share the patching of a discover cell, layer by layer, and its curve.
    """
    ray = find_ray()

    def runner(cells: list[Cell], out: Path) -> Iterator[Done | int]:
        if split and not any(map(_can_share, cells)):
            raise MechheadsError(
                "--split-layers shares discover cells of the method patch, and there is none. Add "
                "--methods patch."
            )
        ours = _connect(ray, address)
        waiting: dict[Any, Cell] = {}
        try:
            places = _check_room(ray.nodes(), cpus, gpus)
            worker = ray.remote(**worker_options(cpus, gpus))
            run, layer, curve = worker(_run), worker(_layer), worker(_curve)
            manager = ray.remote(num_cpus=0, max_retries=5)(_share)
            workplace = Workplace(out.resolve(), Path.cwd(), max(1, int(cpus)))
            for cell in cells:
                if split and _can_share(cell):
                    waiting[manager.remote(layer, curve, run, cell, workplace, places)] = cell
                else:
                    waiting[run.remote(cell, workplace)] = cell
            while waiting:
                yield _running(out, waiting.values())
                ready, _ = ray.wait(list(waiting), num_returns=1, timeout=2)
                for ref in ready:
                    yield _ended(ray, ref, waiting.pop(ref), out)
        finally:
            for ref in waiting:
                ray.cancel(ref, force=True)
            if ours:
                ray.shutdown()

    return runner


def worker_options(cpus: float, gpus: float) -> dict[str, Any]:
    """Resources per cell; by default, Ray would end GPU workers, with their models, after each."""
    return {"num_cpus": cpus, "num_gpus": gpus, "max_retries": 5, "max_calls": 0}


def find_ray() -> Any:
    """The ray module, or an error that says how to install it."""
    try:
        import ray
    except ModuleNotFoundError:
        raise MechheadsError(
            "--cluster needs Ray, which is not installed. Run: pip install 'mechheads[cluster]'"
        ) from None
    return ray


def _run(
    cell: Cell,
    workplace: Workplace,
    effects: HeadEffects | None = None,
    subsets: "SubsetTable | None" = None,
) -> Done:
    """Run a cell in a worker, which keeps its models loaded."""
    _prepare(workplace)
    return run_cell(cell, workplace.out, Session(_models(), effects, quiet=True, subsets=subsets))


def _layer(cell: Cell, layer: int | None, workplace: Workplace) -> Any:
    """In a worker: the effects of one layer's heads; without a layer, the number of layers."""
    from mechheads.jobs.discovery import patch_layer

    _prepare(workplace)
    return patch_layer(layer, dict(cell.settings), Session(_models(), quiet=True))


def _curve(
    cell: Cell, share: tuple[int, int], workplace: Workplace, effects: HeadEffects
) -> "SubsetTable":
    """In a worker: a share of the subsets of heads on the curve of these effects."""
    from mechheads.jobs.discovery import measure_share

    _prepare(workplace)
    return measure_share(share, dict(cell.settings), Session(_models(), effects, quiet=True))


def _share(layer: Any, curve: Any, run: Any, cell: Cell, workplace: Workplace, places: int) -> Done:
    """Run a discover cell: workers patch its layers, then measure its curve; one does the rest.

    There are as many shares of the curve as places for workers, but not more than layers.
    """
    ray, start = find_ray(), time.monotonic()
    if (found := finished(workplace.out, cell)) is not None:
        return Done(cell, None, 0.0, found)
    try:
        count = ray.get(layer.remote(cell, None, workplace))
        parts = ray.get([layer.remote(cell, i, workplace) for i in range(count)])
        whole = replace(parts[0], values=sum(part.values for part in parts))
        n = min(count, places)
        shares = ray.get([curve.remote(cell, (i, n), workplace, whole) for i in range(n)])
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        why = str(cause) if isinstance(cause, MechheadsError) else describe(cause)
        return Done(cell, why, time.monotonic() - start)
    from mechheads.engine.subset_table import joined

    done = ray.get(run.remote(cell, workplace, whole, joined(shares)))
    return replace(done, seconds=time.monotonic() - start)


def _ended(ray: Any, ref: Any, cell: Cell, out: Path) -> Done:
    """The outcome of a cell; its run may be complete even if its worker has died."""
    try:
        return ray.get(ref)
    except ray.exceptions.RayError as error:
        found = finished(out, cell)
        cause = getattr(error, "cause", None)  # of an exception in the worker
        what = describe(cause) if isinstance(cause, Exception) else _first_line(error)
        why = f"the cluster gave up on it ({what})"
        return Done(cell, None if found else why, 0.0, found)


def _running(out: Path, cells: Iterable[Cell]) -> int:
    """How many cells have started: a cell's folder is created when it starts."""
    return sum(partial(out, cell).is_dir() for cell in cells)


def _can_share(cell: Cell) -> bool:
    given = dict(cell.settings)
    patched = given.get("method") == "patch" and given.get("effects") is None
    counted = given.get("n") != "auto"
    of_heads = given.get("level", "heads") == "heads"
    return cell.command == "discover" and patched and counted and of_heads


def _prepare(workplace: Workplace) -> None:
    import torch

    with suppress(OSError):  # a node without the folder can still run cells without relative paths
        os.chdir(workplace.cwd)
    leave_working_directory()
    torch.set_num_threads(workplace.threads)


@cache
def _models() -> ModelCache:
    """The models of this worker process."""
    return ModelCache()


def _check_room(nodes: Iterable[dict[str, Any]], cpus: float, gpus: float) -> int:
    """How many workers the nodes have room for; an error if none is large enough for one.

    Ray would wait for one forever.
    """
    there = [
        (node["Resources"].get("CPU", 0), node["Resources"].get("GPU", 0))
        for node in nodes
        if node["Alive"]
    ]
    room = [
        int(min(has_cpus / cpus, has_gpus / gpus if gpus else float("inf")))
        for has_cpus, has_gpus in there
    ]
    if not any(room):
        listed = "; ".join(f"{has_cpus:g} and {has_gpus:g}" for has_cpus, has_gpus in there)
        raise MechheadsError(
            f"a cell needs {cpus:g} CPUs and {gpus:g} GPUs, but the cluster's nodes have {listed}. "
            "Use smaller --cpus and --gpus, or add a node."
        )
    return sum(room)


def _connect(ray: Any, address: str) -> bool:
    """Connect; returns whether the connection is ours to close."""
    if ray.is_initialized():
        return False
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    if address not in ("local", "auto"):
        _reach(address)
    options: dict[str, Any] = {"logging_level": logging.CRITICAL, "log_to_driver": False}
    if address == "local":
        options["include_dashboard"] = False
    stop = signal.getsignal(signal.SIGTERM)
    try:
        # In this thread: the processes of a local cluster die with the thread that starts them.
        ray.init(address=address, **options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise _no_cluster(address, _first_line(error)) from None
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, stop)  # Ray's handler would end this process at once
    return True


def _reach(address: str) -> None:
    """Raise an error if no Ray answers at the address: Ray itself would wait, and then abort.

    A Ray server speaks gRPC: over HTTP/2, the first thing that a server says is its settings.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=DEADLINE) as server:
            if os.environ.get("RAY_USE_TLS", "0") == "0":
                server.sendall(HELLO)
                if server.recv(4)[3:] != SETTINGS:
                    raise OSError("it is not a Ray server")
    except TimeoutError:
        raise _no_cluster(address, f"no answer within {DEADLINE:.0f} s") from None
    except (OSError, ValueError, OverflowError) as error:
        raise _no_cluster(address, str(error)) from None


def _no_cluster(address: str, why: str) -> MechheadsError:
    return MechheadsError(
        f"no Ray cluster at {address} ({why}). Start one with `ray start --head` and give its "
        "address, for example 10.0.0.1:6379, or use --cluster local."
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
