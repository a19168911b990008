"""How much faster two workers are than one on a sweep of equal cells."""

import logging
import math
import tempfile
import time
from pathlib import Path
from typing import Any

from ..benchmark import Timing
from ..errors import MechheadsError
from ..progress import say
from .cells import sweep_cells
from .cluster import find_ray, on_cluster
from .grid import Cell, from_flags


def compare_workers(count: int, quiet: bool) -> Timing:
    """So many discover cells on a local Ray cluster of one worker and of two, one CPU each.

    Workers have imported everything before the clock starts.
    """
    seconds = [_timed(workers, count, quiet) for workers in (1, 2)]
    what = f"sweep of {count} cells, 2 workers against 1"
    return Timing("mini", what, 2, seconds[0], seconds[1], math.nan, math.nan)


def _timed(workers: int, count: int, quiet: bool) -> float:
    ray: Any = find_ray()
    say(f"sweep, {workers} workers ...", quiet)
    ray.init(
        num_cpus=workers,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    try:
        with tempfile.TemporaryDirectory() as place:
            out = Path(place)
            _sweep(_cells(range(100, 100 + 2 * workers), n="4"), out / "warm")
            start = time.perf_counter()
            _sweep(_cells(range(count), n="32"), out / "timed")
            return time.perf_counter() - start
    finally:
        ray.shutdown()


def _cells(seeds: range, n: str) -> list[Cell]:
    axes = {"tasks": ["ioi"], "models": ["mini"], "seeds": list(seeds)}
    return from_flags(["discover"], axes, {"n": n, "test": n})


def _sweep(cells: list[Cell], out: Path) -> None:
    failed = sweep_cells(cells, out, on_cluster("auto", 1.0, 0.0), True)
    if failed:
        raise MechheadsError(f"a cell of the benchmark failed: {failed[0].error}")
