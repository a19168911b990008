"""How long discover is estimated to take before it begins, and how long it takes.

Seconds are of the CPU, on one thread: those depend less than the clock's on what else runs. The
speed is measured as discover does.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import circuits
import mechheads
import tasks
from circuits.planning.work import plan_discovery
from mechheads.engine.costs import measure_speed
from mechheads.models.devices import keep_freed_memory, with_threads
from mechheads.models.fetchable import is_complete
from mechheads.progress import say

RUNS = (("mini", "patch", 32), ("mini", "attribution", 32), ("smollm2", "attribution", 16))


@dataclass(frozen=True)
class Estimated:
    """CPU seconds of one discovery of ioi with so many prompts to rank and to judge."""

    model: str
    method: str
    n: int
    estimated: float
    actual: float
    timing: float

    @property
    def ratio(self) -> float:
        """Estimated by actual seconds: 1 is right, above it the estimate is too long."""
        return self.estimated / self.actual


@dataclass(frozen=True)
class Estimates:
    """Some discoveries, estimated and timed."""

    estimates: tuple[Estimated, ...]

    @property
    def sentence(self) -> str:
        """How far off they are."""
        ratios = [one.ratio for one in self.estimates]
        return f"Estimates are {min(ratios):.2f} to {max(ratios):.2f} of the CPU time taken."

    @property
    def table(self) -> str:
        """A line of titles, and one per discovery."""
        lines = ["model    method        n  estimated, s  actual, s  ratio  timing it, s"]
        for one in self.estimates:
            lines.append(
                f"{one.model:8} {one.method:11} {one.n:3} {one.estimated:13.1f} {one.actual:10.1f} "
                f"{one.ratio:6.2f} {one.timing:13.2f}"
            )
        return "\n".join([*lines, "", self.sentence])


def compare_estimates(
    runs: Sequence[tuple[str, str, int]] = RUNS, backend: str | None = None, quiet: bool = False
) -> Estimates:
    """Estimate and run each discovery; models that were not fetched are left out."""
    keep_freed_memory()
    found = []
    with with_threads(1):
        for name, method, n in runs:
            if name == "smollm2" and not is_complete(name):
                continue
            say(f"discover on {name} by {method} ...", quiet)
            found.append(_compare(name, method, n, backend))
    return Estimates(tuple(found))


def _compare(name: str, method: str, n: int, backend: str | None) -> Estimated:
    model = mechheads.load(name, backend=backend)
    ranking, judging = tasks.make("ioi", model, n=2 * n).halves()
    # The defaults of discover.
    plan = plan_discovery(
        model,
        ranking,
        judging,
        method=method,
        scoring={},
        metric=None,
        replacement="corrupt",
        budget=None,
        points="auto",
        draws=10,
        k=None,
        search="top",
    )
    begin = time.process_time()
    speed = measure_speed(model, judging, clock=time.process_time)
    timed = time.process_time()
    circuits.discover(model, ranking, judging, method=method, quiet=True)
    actual = time.process_time() - timed
    return Estimated(name, method, n, plan.total / speed, actual, timed - begin)
