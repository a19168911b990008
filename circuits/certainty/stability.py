"""Would other prompts have found the same heads? Overlap of the k strongest between rankings."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from circuits.circuit import Circuit, Head
from mechheads.scoring.effects import HeadEffects
from mechheads.scoring.statistics import resample


def overlap(rankings: Sequence[Sequence[Head]], k: int) -> float:
    """Mean Jaccard index of the first k heads over all pairs of rankings; 1 for a single one."""
    circuits = [Circuit("", tuple(ranking[:k])) for ranking in rankings]
    found = [a.jaccard(b) for i, a in enumerate(circuits) for b in circuits[i + 1 :]]
    return sum(found) / len(found) if found else 1.0


def resampled_overlap(
    effects: HeadEffects, k: int, *, signed: bool = False, times: int = 200
) -> float:
    """Bootstrap over prompts: Jaccard index with the top k heads, mean over resampled prompts.

    Runs no model: uses the effects per prompt. How often each head is in: `certainty.inclusion`.
    """
    kept = _kept(effects, k, signed, times)
    return float((kept / (2 * k - kept).clamp(min=1)).mean())


def share_that_stays(
    effects: HeadEffects, k: int, *, signed: bool = False, times: int = 1000
) -> float:
    """Bootstrap over prompts: the share of the top k heads that stay there, on average.

    All heads are ranked on the same resampled prompts (a paired bootstrap), so that what makes a
    prompt easy or hard for all of them does not count.

    >>> import torch
    >>> from mechheads.scoring.effects import HeadEffects
    >>> clear = torch.tensor([[[3.0, 0.1], [0.2, 2.0]]]).repeat(8, 1, 1)
    >>> flat = torch.zeros(8)
    >>> share_that_stays(HeadEffects("", "", "patch", "logit_diff", clear, flat, flat), 2)
    1.0
    """
    return float(_kept(effects, k, signed, times).mean() / k)


def _kept(effects: HeadEffects, k: int, signed: bool, times: int) -> Float[Tensor, " time"]:
    """How many of the top k heads are among the top k on resampled prompts."""
    n = len(effects.values)
    means = (resample(n, times=times) @ effects.values.flatten(1)) / n
    sizes = means if signed else means.abs()
    top = sizes.sort(dim=1, descending=True, stable=True).indices[:, :k]
    members = torch.zeros_like(means).scatter_(1, top, 1.0)
    own = torch.zeros(means.shape[1])
    heads = effects.values.shape[2]
    own[[layer * heads + head for layer, head in effects.ranking(signed=signed)[:k]]] = 1.0
    return members @ own
