"""How large an effect can a head have that was not looked at? (AtP*, arXiv:2403.00745.)

1. Random halves of the heads that were not looked at are patched, each half together.
2. A head's effect is the mean over the halves with it minus that over the halves without it.
3. The bound is the largest upper end of a Welch interval of these differences, at 95 % for all of
   the heads together (Bonferroni).

It bounds a head's effect averaged over the company that it had. That is the effect of patching it
alone where heads add up, and more than that where others take over for it.
"""

import math
import random
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from scipy import stats
from torch import Tensor

from mechheads.engine.head_subsets import keep_only, measure_subsets
from mechheads.errors import MechheadsError
from mechheads.metrics import MetricLike
from mechheads.models.model import Model, shape_of
from mechheads.prompts import Prompts

LEAST = 8  # subsets


def check_subsets(subsets: int) -> None:
    """Raise if there are too few subsets for a bound; 0 stands for none."""
    if subsets and subsets < LEAST:
        raise MechheadsError(
            f"--subsets takes 0 (no bound) or {LEAST} or more random subsets, got {subsets}."
        )


def missed_heads(
    model: Model,
    prompts: Prompts,
    metric: MetricLike | None,
    heads: Sequence[tuple[int, int]],
    subsets: int,
    *,
    direction: str = "noising",
    seed: int = 0,
    budget: int | None = None,
    quiet: bool = False,
) -> dict[str, Any]:
    """`largest_missed`, the bound on the size of any of these heads' effects, and `subsets`.

    None if there are fewer than two heads; nothing without subsets. Costs a pass per subset.
    """
    if not subsets:
        return {}
    if len(heads) < 2:
        return {"subsets": 0, "largest_missed": None}
    grid, draw = shape_of(model).grid, random.Random(seed)
    inside = torch.zeros(subsets, len(heads), dtype=torch.bool)
    for row in inside:
        row[draw.sample(range(len(heads)), len(heads) // 2)] = True
    every = set(shape_of(model).every_head)
    kept = [every - {head for head, drawn in zip(heads, row, strict=True) if drawn}
            for row in inside.tolist()]  # fmt: skip
    keep = torch.stack([keep_only(sorted(some), *grid) for some in kept])
    values = measure_subsets(
        model, prompts, keep, metric, direction=direction, budget=budget, quiet=quiet
    )
    ends = upper_ends(values.mean(1), inside)
    return {"subsets": subsets, "largest_missed": float(ends.max())}


def upper_ends(
    values: Float[Tensor, " subset"], inside: Tensor, level: float = 0.95
) -> Float[Tensor, " head"]:
    """For every head, the largest size of its effect that fits, at that level for all heads.

    Infinite for a head that fewer than two subsets have, or lack.
    """
    found = []
    for column in inside.T:
        groups = values[column].double(), values[~column].double()
        if min(map(len, groups)) < 2:
            found.append(math.inf)
            continue
        size = abs(float(groups[0].mean() - groups[1].mean()))
        parts = [float(group.var()) / len(group) for group in groups]
        spread = sum(parts)
        if spread == 0:
            found.append(size)
            continue
        free = spread**2 / sum(
            p**2 / (len(group) - 1) for p, group in zip(parts, groups, strict=True)
        )
        tail = (1 - level) / (2 * inside.shape[1])
        found.append(size + float(stats.t.isf(tail, free)) * spread**0.5)
    return torch.tensor(found)
