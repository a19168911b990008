"""Where the CPU seconds go from the shell to a loaded model, library by library.

Each round is a process of its own. Seconds are of the CPU, user and system, since those depend less
than the clock's on what else the machine does; the least of the rounds counts.
"""

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib import import_module

from mechheads.errors import MechheadsError
from mechheads.models.backends.imports import LIBRARIES, lean_imports

ROUNDS = 3
PROGRAM = "import sys; from mechheads.benchmarks.startup import tell_laps; tell_laps(sys.argv[1])"


@dataclass(frozen=True)
class Startup:
    """CPU seconds of every stage, in order: Python, the libraries, the model, the exit."""

    stages: dict[str, float]
    rounds: int

    @property
    def loaded(self) -> float:
        """CPU seconds from the shell to the loaded model."""
        return sum(self.stages.values()) - self.stages["exit"]

    @property
    def sentence(self) -> str:
        """The sum in words."""
        return f"From the shell to the loaded mini: {self.loaded:.1f} CPU seconds."

    @property
    def table(self) -> str:
        """A line per stage, and the sum."""
        lines = [f"{seconds:6.2f} s  {stage}" for stage, seconds in self.stages.items()]
        return "\n".join([*lines, "", f"{self.sentence} The least of {self.rounds} rounds each."])


def measure_startup(backend: str | None = None, rounds: int = ROUNDS) -> Startup:
    """Start Python, import everything and load mini, `rounds` times."""
    measured = [_round(backend) for _ in range(rounds)]
    return Startup({name: min(one[name] for one in measured) for name in measured[0]}, rounds)


def _round(backend: str | None) -> dict[str, float]:
    before = _of_children()
    words = [sys.executable, "-c", PROGRAM, backend or ""]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise MechheadsError(f"mini cannot be loaded in a new process ({reason}).")
    laps = {**json.loads(done.stdout), "exit": _of_children() - before}
    starts = [0.0, *laps.values()]
    return {name: max(0.0, laps[name] - start) for name, start in zip(laps, starts, strict=False)}


def _of_children() -> float:
    """CPU seconds of all processes that this one has started and waited for."""
    times = os.times()
    return times.children_user + times.children_system


def tell_laps(backend: str) -> None:
    """In the new process: print the CPU seconds used up to the end of every stage."""
    laps = {"Python": time.process_time()}
    with lean_imports():
        for name in LIBRARIES:
            import_module(name)
            laps[name] = time.process_time()
    from mechheads.models.load import load

    load("mini", backend=backend or None)
    laps["mini, read and checked"] = time.process_time()
    print(json.dumps(laps))
