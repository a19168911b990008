"""Exact where that is quick enough, else screened: `patch` or `hybrid`, by the time `patch` takes.

1. The operations of patching all heads on these prompts are counted (`mechheads.engine.costs`).
2. Unless they are so few that any computer is quick enough, a small changed run is timed.
   Operations by speed is about how long `patch` takes here.
3. If that is at most `time` minutes, all heads are patched; else `hybrid` patches those that `atp`
   ranks first and a sample of the others. `hybrid` knows z of the corrupted run only: with any
   other replacement all heads are patched, however long it takes.

The result is that of `patch` or `hybrid` and carries its name. It is the same each time, on the
same machine, unless `patch` takes about `time` minutes: then the choice can change with what else
the machine does, as it can from machine to machine. Name the method where that must not be.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mechheads.engine import costs
from mechheads.errors import MechheadsError
from mechheads.metrics import MetricLike
from mechheads.models.model import Model
from mechheads.progress import say
from mechheads.prompts import Prompts

from ..activation_patching import patch
from ..effects import HeadEffects
from .hybrid import hybrid

MINUTES = 10.0
SLOW = 1e9  # operations per second that any computer reaches
WHY = {
    "patch": "all heads were patched: by the estimate, that fits in --time",
    "hybrid": "only the strongest heads of atp and a sample of the others were patched: by the "
    "estimate, patching all of them takes longer than --time",
}


def auto(
    model: Model,
    prompts: Prompts,
    metric: MetricLike | None = None,
    *,
    time: float = MINUTES,
    direction: str = "noising",
    replacement: str = "corrupt",
    budget: int | None = None,
    quiet: bool = False,
) -> HeadEffects:
    """`patch` if that takes at most `time` minutes on this machine, else `hybrid`.

    Same sign as both. Costs what the chosen one does, and a short run that is timed. The result's
    `method` is the chosen one, and its notes say why; `hybrid`'s also say what it may have missed.
    """
    check_time(time)
    if replacement != "corrupt":
        given: dict[str, Any] = {"direction": direction, "budget": budget, "quiet": quiet}
        return patch(model, prompts, metric, replacement=replacement, **given)
    work = costs.patching(
        costs.sizes_of(model), costs.loads_of(model, prompts, metric, budget=budget)
    )
    chosen = choose(work, time)
    if not chosen:
        speed = costs.measure_speed(model, prompts, metric, budget=budget)
        chosen = choose(work, time, speed)
    say(f"auto: {WHY[chosen]}.", quiet)
    common: dict[str, Any] = {"direction": direction, "budget": budget, "quiet": quiet}
    found = {"patch": patch, "hybrid": hybrid}[chosen](model, prompts, metric, **common)
    settings = {**found.settings, "chosen_by": "auto", "time": time}
    return replace(found, settings=settings, notes={**found.notes, "why": WHY[chosen]})


def check_time(time: float) -> None:
    """Raise an error unless it is a number of minutes."""
    if not 0 <= time < math.inf:
        raise MechheadsError(f"--time takes 0 or more minutes, got {time}.")


def minutes_of(options: Mapping[str, Any]) -> float:
    """The option `time`, if it can be read; the default if not, which `auto` will refuse."""
    try:
        return float(options.get("time", MINUTES))
    except (TypeError, ValueError):
        return MINUTES


def choose(work: float, time: float, speed: float | None = None) -> str:
    """The method for so many operations, at so many a second; empty if that must be measured.

    >>> from mechheads.scoring.screened.auto import choose
    >>> choose(1e12, 10.0, 1e9), choose(1e12, 20.0, 1e9), choose(1e12, 10.0)
    ('hybrid', 'patch', '')
    """
    if time == 0:
        return "hybrid"
    if work <= 60 * time * (speed or SLOW):
        return "patch"
    return "hybrid" if speed else ""
