"""Screen, then verify: AtP* ranks the heads, exact patching checks the strongest.

A random sample of the seemingly weak heads is patched too. How many of them turn out to be strong
tells how many strong heads have probably been missed; random subsets of all of them bound how
strong a missed head can be.
"""

import random
from dataclasses import replace
from typing import Any

from scipy import stats

from mechheads.errors import MechheadsError
from mechheads.metrics import MetricLike
from mechheads.models.model import Model, shape_of
from mechheads.progress import stages
from mechheads.prompts import Prompts

from ..activation_patching import patch
from ..backward.atp import atp
from ..backward.missed_heads import check_subsets, missed_heads
from ..effects import HeadEffects


def hybrid(
    model: Model,
    prompts: Prompts,
    metric: MetricLike | None = None,
    *,
    direction: str = "noising",
    verify: int | None = None,
    sample: int | None = None,
    subsets: int = 0,
    seed: int = 0,
    budget: int | None = None,
    quiet: bool = False,
) -> HeadEffects:
    """`patch` for the heads that `atp` ranks highest, its estimate for the others.

    Same sign as `patch`. Costs `atp` (without GradDrop), a pass per verified or sampled head, by
    default a fifth and a tenth of all heads, and a pass per random subset, by default none.

    A head counts as strong if its effect is at least the median of the verified ones; the notes
    estimate how many strong heads are among the others, with a 95% upper bound. With `subsets`,
    they also say how strong one of them can be (`missed_heads`).
    """
    every = len(shape_of(model).every_head)
    verify = min(max(4, every // 5), every) if verify is None else verify
    rest = every - verify
    sample = min(max(4, every // 10), rest) if sample is None else sample
    if verify < 1 or sample < 0 or verify + sample > every:
        raise MechheadsError(
            f"--verify takes 1 or more heads and --sample 0 or more, up to {every} together; "
            f"got {verify} and {sample}."
        )
    check_subsets(subsets)
    common: dict[str, Any] = {"direction": direction, "budget": budget, "quiet": quiet}
    weights = {"Screening": 8, "Patching": 2 + (verify + sample + subsets) / 4}
    with stages("hybrid", weights, quiet) as progress:
        with progress.stage("Screening"):
            guessed = atp(model, prompts, metric, **common)
        order = guessed.ranking()
        top = order[:verify]
        drawn = random.Random(seed).sample(order[verify:], sample)
        with progress.stage("Patching"):
            exact = patch(model, prompts, metric, heads=[*top, *drawn], **common)
            others = [head for head in order[verify:] if head not in set(drawn)]
            bound = missed_heads(model, prompts, metric, others, subsets, seed=seed, **common)
    values = guessed.values.clone()
    for layer, head in (*top, *drawn):
        values[:, layer, head] = exact.values[:, layer, head]
    sizes = exact.scores.abs()
    strong = sorted(float(sizes[cell]) for cell in top)[len(top) // 2]
    hits = sum(float(sizes[cell]) >= strong for cell in drawn)
    unknown = rest - sample
    share = float(stats.beta.ppf(0.95, hits + 1, sample - hits)) if hits < sample else 1.0
    errors = [abs(float(exact.scores[c] - guessed.scores[c])) for c in drawn]
    notes = {
        "verified": len(top),
        "sampled": sample,
        "unverified": unknown,
        "strong_effect": strong,
        "missed": unknown * hits / sample if sample else None,
        "missed_at_most": unknown * share,
        "mean_error": sum(errors) / sample if sample else None,
        **bound,
    }
    settings = {"direction": direction, "verify": verify, "sample": sample, "seed": seed}
    return replace(guessed, method="hybrid", values=values, settings=settings, notes=notes)
