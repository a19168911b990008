"""Would other prompts have found the same heads? Overlap of the k strongest between rankings."""

from collections.abc import Sequence

import torch

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
    n = len(effects.values)
    means = (resample(n, times=times) @ effects.values.flatten(1)) / n
    sizes = means if signed else means.abs()
    top = sizes.sort(dim=1, descending=True, stable=True).indices[:, :k]
    members = torch.zeros_like(means).scatter_(1, top, 1.0)
    own = torch.zeros(means.shape[1])
    heads = effects.values.shape[2]
    own[[layer * heads + head for layer, head in effects.ranking(signed=signed)[:k]]] = 1.0
    both = (members * own).sum(1)
    either = (members + own).clamp(max=1).sum(1).clamp(min=1)
    return float((both / either).mean())
