"""How much work a discovery is, stage by stage: for its progress bar, and said before it begins.

Work is counted in floating-point operations (`mechheads.engine.costs`); what is not patching is
counted as whole passes of the model. Work by the measured speed of this machine is a duration.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mechheads.engine import costs
from mechheads.engine.costs import Load, Sizes
from mechheads.metrics import MetricLike
from mechheads.models.model import Model
from mechheads.progress import duration, say, watched
from mechheads.prompts import Prompts
from mechheads.scoring.registry import Method, find
from mechheads.scoring.screened.auto import choose, minutes_of

from ..points import AUTO, curve_points, mib_counts, random_points
from ..search import search_passes
from .enough_prompts import FIRST

SHORT = 10.0  # seconds; less is not announced
USUAL = 5e9  # operations per second, at least, of models too small to be timed
SPARED = 0.03  # the share of the work that timing it may add


@dataclass(frozen=True)
class Plan:
    """What a discovery will do, in words, and the operations of each of its stages."""

    words: str
    stages: Mapping[str, float]

    @property
    def total(self) -> float:
        """Operations of all stages."""
        return sum(self.stages.values())

    def sentence(self, speed: float) -> str:
        """What will be done, and about how long it takes at so many operations per second."""
        return f"{self.words}: about {duration(self.total / speed, rough=True)}"


def announce(
    model: Model,
    ranking: Prompts,
    judging: Prompts,
    settings: Mapping[str, Any],
    quiet: bool = False,
) -> Plan:
    """The plan of a discovery, and a line about it if someone is watching and it takes a while.

    Then a short run is timed, unless that would add more than 3% to the work.
    """
    plan = plan_discovery(model, ranking, judging, **settings)
    shared = {name: settings[name] for name in ("metric", "replacement", "budget")}
    adds = costs.timing(costs.sizes_of(model), costs.loads_of(model, judging, **shared))
    if not watched(quiet) or plan.total < max(SHORT * USUAL, adds / SPARED):
        return plan
    speed = costs.measure_speed(model, judging, **shared)
    plan = plan_discovery(model, ranking, judging, **settings, speed=speed)
    if plan.total >= SHORT * speed:
        say(f"discover: {plan.sentence(speed)}.", quiet)
    return plan


def plan_discovery(
    model: Model,
    ranking: Prompts,
    judging: Prompts,
    *,
    method: "str | Callable[..., Any] | None",
    scoring: Mapping[str, Any],
    metric: MetricLike | None,
    replacement: str,
    budget: int | None,
    points: int | str,
    draws: int,
    k: int | None,
    search: str,
    alternatives: int = 0,
    n: int | str | None = None,
    speed: float | None = None,
) -> Plan:
    """The stages of a discovery, with their operations.

    Args:
        model: what `mechheads.load` returns
        ranking: the prompts that rank the heads
        judging: those that evaluate the ranking
        method: ranks the heads; None if their effects are given
        scoring: the method's options
        metric: as in `circuits.discover`, like `replacement`, `budget`, `points` and `draws`
        replacement: what replaces heads not kept
        budget: tokens per pass
        points: at how many k the curve is measured
        draws: number of random rankings
        k: size of the circuit, if known; else a quarter of the heads counts
        search: how heads are chosen
        alternatives: how many of each kind are searched
        n: "auto" if as many of `ranking` are used as it takes; the least is counted
        speed: operations per second, by which `auto` chooses

    Returns:
        Plan: its words and stages. Costs tokenizing the prompts.
    """
    upto = ""
    if n == AUTO and len(ranking) > FIRST:
        ranking, upto = ranking.first(FIRST), f" (up to {len(ranking)} if the order is not settled)"
    sizes = costs.sizes_of(model)
    every = sizes.layers * sizes.heads
    given: dict[str, Any] = {"replacement": replacement}
    few = costs.subset_budget(model, budget)
    ranked = costs.loads_of(model, ranking, metric, budget=budget)
    searched = costs.loads_of(model, ranking, metric, budget=few, **given)
    judged = costs.loads_of(model, judging, metric, budget=few, **given)
    full, ranking_pass = costs.whole(sizes, judged), costs.whole(sizes, ranked)
    own = curve_points(every, points)
    random_at = random_points(every, len(own), draws)
    curve = (
        costs.cached(sizes, judged)
        + costs.curve(sizes, judged, own)
        + costs.curve(sizes, judged, random_at[:-1], draws)  # all heads is the same of all
        + costs.curve(sizes, judged, mib_counts(every)[:-1])
    )
    passes = 0.0 if search == "top" else search_passes(search, every)
    again = costs.curve(sizes, searched, curve_points(every)) if alternatives else 0.0
    work, words = 0.0, f"given effects of {every} heads"
    if method is not None:
        found = _settled(find(method), sizes, ranked, scoring, speed)
        work = method_work(found, sizes, ranked, len(ranking), scoring)
        words = f"{found.name}, {every} heads on {len(ranking)} prompts"
        if found.name == "patch":
            words = f"patch all {every} heads on {len(ranking)} prompts"
        words += upto
    words += f", curve at {len(own)} points, {draws} random rankings"
    words += "" if search == "top" else f", search by {search}"
    words += f", {alternatives} alternatives of each kind" if alternatives else ""
    removed = costs.patching(sizes, judged, k or every / 4)
    kept = 3 * sum(costs.changed(sizes, load, 0) for load in judged)
    stages = {
        "Evaluating": 2.0 * full,
        "Ranking heads": work,
        "Measuring the curve": curve,
        "Choosing heads": passes * ranking_pass,
        "Testing the circuit": removed + kept,
        "Searching alternatives": 2 * alternatives * again,
        "Counting edges": 3.0 * full,
        "Tracing paths": costs.paths(sizes, ranked) + 5.0 * ranking_pass,
        "Describing heads": (24 / len(judging) + 2) * full,
    }
    return Plan(words, stages)


def method_work(
    method: Method, sizes: Sizes, loads: list[Load], n: int, options: Mapping[str, Any]
) -> float:
    """Operations of a scoring method on n prompts."""
    every = sizes.layers * sizes.heads
    patched = method.patched(every, options)
    others = method.passes(every, n, options) / n - patched / 4
    alone = costs.patching(sizes, loads, patched) - costs.cached(sizes, loads)
    return others * costs.whole(sizes, loads) + alone


def _settled(
    method: Method,
    sizes: Sizes,
    loads: list[Load],
    options: Mapping[str, Any],
    speed: float | None,
) -> Method:
    """What `auto` will probably choose; any other method is itself."""
    if method.name.partition(":")[0] != "auto" or not isinstance(method.home, str):
        return method
    options = {**options, **method.preset}
    if options.get("replacement", "corrupt") != "corrupt":
        return find("patch")
    return find(choose(costs.patching(sizes, loads), minutes_of(options), speed) or "patch")
