"""Rank the heads on as many prompts as it takes: `--n auto`.

1. The first 16 prompts rank the heads.
2. Where is the circuit's border? At the number of heads asked for; else where f reaches the
   threshold, measured on those 16 prompts at a dozen numbers of heads.
3. Is the order around the border settled? The prompts are drawn again with replacement, for all
   heads together (a paired bootstrap). It is settled if on average 90% of the heads that are before
   the border stay there.
4. If not, the number of prompts is doubled, and so on from step 2. Where a prompt's effects do not
   depend on the other prompts, only the new ones are run.

Looking again after each block makes it a little too easy to stop early, and the prompts that judge
the ranking are not touched: how sure the circuit is, is measured as for any other number of
prompts. `auto` decides on the first block whether all heads are patched.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from circuits.certainty.stability import share_that_stays
from circuits.measured import explained, needed
from circuits.points import AUTO, curve_points
from mechheads.engine.head_subsets import measure_subsets, nested
from mechheads.errors import MechheadsError
from mechheads.metrics import MetricLike
from mechheads.models.model import Model, shape_of
from mechheads.prompts import Prompts, check_prompts
from mechheads.scoring.effects import HeadEffects
from mechheads.scoring.registry import find, score_heads

FIRST = 16  # prompts of the first block
STAY = 0.9  # of the heads before the border
PLACES = 12  # numbers of heads at which the border is looked for


@dataclass(frozen=True)
class Ranked:
    """The effects, the prompts that they are of, and a note if the order was not settled."""

    effects: HeadEffects
    prompts: Prompts
    note: str = ""


def check_n(n: int | str | None, prompts: Prompts) -> Prompts:
    """The prompts that may rank the heads: the first n; all if n is None or "auto"."""
    if n is None or n == AUTO:
        return prompts
    if isinstance(n, str):
        raise MechheadsError(f"--n takes a whole number or auto, got {n}.")
    check_prompts("--n", n)
    if n > len(prompts):
        raise MechheadsError(f"n is {n}, but only {len(prompts)} prompts rank the heads.")
    return prompts.first(n)


def rank_until_settled(
    model: Model,
    prompts: Prompts,
    method: "str | Callable[..., Any]",
    metric: MetricLike | None,
    *,
    scoring: Mapping[str, Any],
    size: int | None,
    threshold: float,
    signed: bool,
    **masked: Any,
) -> Ranked:
    """Rank the heads on 16 of the prompts, 32, 64 ... until the order is settled, or on all.

    Args:
        model: what `mechheads.load` returns
        prompts: as many as may be used
        method: scores the heads, see `mechheads.score_heads`
        metric: measures both the effects and f
        scoring: the method's options
        size: the number of heads in the circuit, if it is known
        threshold: else the share of the effect that its heads explain
        signed: whether heads are ranked by the signed effect
        masked: replacement, budget and quiet, for f

    Returns:
        Ranked: effects whose notes say how many prompts were used and what share of the circuit's
        heads stays on other prompts. Costs the method, on at most twice the prompts that are used,
        and a dozen passes for every block.
    """
    n = min(FIRST, len(prompts))
    effects = score_heads(model, prompts.first(n), method, metric, **scoring)
    while True:
        some = prompts.first(n)
        border = size or _border(model, some, effects, metric, threshold, signed, masked)
        stays = 1.0 if effects.single else share_that_stays(effects, border, signed=signed)
        if stays >= STAY or n == len(prompts):
            break
        more = min(2 * n, len(prompts))
        effects = _with_more(model, prompts.first(more), n, effects, method, metric, scoring)
        n = more
    notes = {"prompts": n, "border": border, "stays": stays, "settled": stays >= STAY}
    effects = replace(effects, notes={**effects.notes, **notes})
    note = (
        ""
        if stays >= STAY
        else f"The order of the heads is not settled after {n} prompts: on other prompts, "
        f"{stays:.0%} of the {border} strongest heads stay among them ({STAY:.0%} were wanted). "
        "Use more prompts (--n)."
    )
    return Ranked(effects, some, note)


def _border(
    model: Model,
    prompts: Prompts,
    effects: HeadEffects,
    metric: MetricLike | None,
    threshold: float,
    signed: bool,
    masked: Mapping[str, Any],
) -> int:
    """About how many heads reach the threshold: measured at a few places, in between on a line."""
    ranking = effects.ranking(signed=signed)
    at = curve_points(len(ranking), PLACES)
    keep = nested(ranking, *shape_of(model).grid)[at]
    f = explained(measure_subsets(model, prompts.first(FIRST), keep, metric, **masked).mean(1))
    reached = int(needed(f[None], threshold, at)[0])
    i = at.index(reached)
    if i == 0:
        return 1
    before, after = float(f[i - 1]), float(f[i])
    share = (threshold - before) / (after - before) if after > before else 1.0
    return max(1, at[i - 1] + round(min(1.0, share) * (reached - at[i - 1])))


def _with_more(
    model: Model,
    prompts: Prompts,
    n: int,
    effects: HeadEffects,
    method: "str | Callable[..., Any]",
    metric: MetricLike | None,
    scoring: Mapping[str, Any],
) -> HeadEffects:
    """The effects of all these prompts, of which the first n have been scored."""
    chosen = effects.settings.get("chosen_by") == "auto"
    used = effects.method if chosen else method
    options = {k: v for k, v in scoring.items() if k in find(used).options} if chosen else scoring
    if not find(used).one_by_one(options):
        found = score_heads(model, prompts, used, metric, **options)
        return replace(found, settings={**found.settings, **effects.settings})
    new = score_heads(model, prompts[n:], used, metric, **options)
    return replace(
        effects,
        values=torch.cat([effects.values, new.values]),
        clean=torch.cat([effects.clean, new.clean]),
        corrupt=torch.cat([effects.corrupt, new.corrupt]),
    )
