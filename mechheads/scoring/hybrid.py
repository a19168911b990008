"""Screen, then verify: attribution ranks the heads, exact patching checks the strongest.

A random sample of the seemingly weak heads is patched too. How many of them turn out to be strong
tells how many strong heads have probably been missed.
"""

import random
from dataclasses import replace

from scipy import stats

from mechheads.errors import MechheadsError
from mechheads.models.model import Model
from mechheads.prompts import Prompts

from .activation_patching import patch
from .attribution_patching import attribution
from .effects import HeadEffects


def hybrid(
    model: Model,
    prompts: Prompts,
    metric: str | None = None,
    *,
    direction: str = "noising",
    verify: int | None = None,
    sample: int | None = None,
    seed: int = 0,
    budget: int | None = None,
    quiet: bool = False,
) -> HeadEffects:
    """`patch` for the heads that attribution ranks highest, its estimate for the others.

    Same sign as `patch`. Costs attribution plus a pass per verified or sampled head: by default a
    fifth and a tenth of all heads. A head counts as strong if its effect is at least the median of
    the verified ones; the notes estimate how many strong heads are among the others, with a 95 %
    upper bound.
    """
    guessed = attribution(model, prompts, metric, direction=direction, budget=budget, quiet=quiet)
    order = guessed.ranking()
    verify = min(max(4, len(order) // 5), len(order)) if verify is None else verify
    rest = len(order) - verify
    sample = min(max(4, len(order) // 10), rest) if sample is None else sample
    if verify < 1 or sample < 0 or verify + sample > len(order):
        raise MechheadsError(
            f"--verify takes 1 or more heads and --sample 0 or more, up to {len(order)} together; "
            f"got {verify} and {sample}."
        )
    top = order[:verify]
    drawn = random.Random(seed).sample(order[verify:], sample)
    exact = patch(
        model,
        prompts,
        metric,
        direction=direction,
        heads=[*top, *drawn],
        budget=budget,
        quiet=quiet,
    )
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
    }
    settings = {"direction": direction, "verify": verify, "sample": sample, "seed": seed}
    return replace(guessed, method="hybrid", values=values, settings=settings, notes=notes)
