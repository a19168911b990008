"""How much faster two workers are than one on a sweep of equal cells."""

import logging
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mechheads.errors import MechheadsError
from mechheads.progress import say
from mechheads.sweeping.cells import complete, look
from mechheads.sweeping.cluster import find_ray, on_cluster
from mechheads.sweeping.grid import Cell, from_flags

ROUNDS = 3


@dataclass(frozen=True)
class Scaling:
    """Seconds for the same cells with one worker and with two, the fastest round of each."""

    cells: int
    one: float
    two: float

    @property
    def ratio(self) -> float:
        """How many times faster two workers are."""
        return self.one / self.two

    @property
    def table(self) -> str:
        """A line of titles and one of numbers."""
        titles = ("cells", "1 worker, s", "2 workers, s", "ratio")
        values = (str(self.cells), f"{self.one:.1f}", f"{self.two:.1f}", f"{self.ratio:.2f} x")
        widths = [max(map(len, both)) for both in zip(titles, values, strict=True)]
        return "\n".join(
            "  ".join(word.rjust(width) for word, width in zip(row, widths, strict=True))
            for row in (titles, values)
        )


def compare_workers(count: int, quiet: bool, backend: str | None = None) -> Scaling:
    """Time discover cells on a local Ray cluster with one worker and with two, one CPU each.

    Workers import everything before the clock starts. One and two take turns, and the fastest
    round counts: other load on the machine only makes it slower, at times by half.
    """
    rounds = [[_timed(workers, count, quiet, backend) for workers in (1, 2)] for _ in range(ROUNDS)]
    return Scaling(count, *map(min, zip(*rounds, strict=True)))


def _timed(workers: int, count: int, quiet: bool, backend: str | None) -> float:
    ray: Any = find_ray()
    say(f"sweep, {workers} workers ...", quiet)
    ray.init(
        address="local",
        num_cpus=workers,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    try:
        with tempfile.TemporaryDirectory() as place:
            out = Path(place)
            _sweep(_cells(range(100, 100 + 2 * workers), "4", backend), out / "warm")
            start = time.perf_counter()
            _sweep(_cells(range(count), "32", backend), out / "timed")
            return time.perf_counter() - start
    finally:
        ray.shutdown()


def _cells(seeds: range, n: str, backend: str | None) -> list[Cell]:
    axes = {"tasks": ["ioi"], "models": ["mini"], "seeds": list(seeds)}
    flags = {"n": n, "test": n} | ({} if backend is None else {"backend": backend})
    return from_flags(["discover"], axes, flags)


def _sweep(cells: list[Cell], out: Path) -> None:
    sweep = look(cells, out)
    complete(sweep, on_cluster("local"), True)
    for error in sweep.errors.values():
        raise MechheadsError(f"a cell of the benchmark failed: {error}")
