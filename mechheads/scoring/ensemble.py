"""Several methods together: the mean rank of every head (compare Mondorf et al. 2025).

1. Each method ranks the heads by the size of their effects.
2. A head's rank is the share of the other heads whose effect is smaller: 1 for the strongest, 0 for
   the weakest, and for all heads that have no effect beyond rounding.
3. Its score is the mean of its ranks, with the sign that most methods give it.

Where we differ from arXiv:2510.06811: it averages scores of edges from methods with one scale.
Ours have different scales (a change of logits, a gate), so ranks are averaged instead.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.errors import MechheadsError
from mechheads.metrics import MetricLike
from mechheads.models.model import Model
from mechheads.progress import stages
from mechheads.prompts import Prompts

from .effects import HeadEffects, given_effects
from .registry import check_members, find, score_heads


def ensemble(
    model: Model,
    prompts: Prompts,
    metric: MetricLike | None = None,
    *,
    members: str = "patch,ig",
    direction: str = "noising",
    budget: int | None = None,
    quiet: bool = False,
) -> HeadEffects:
    """The mean rank of every head over several methods: its size is 0 for the weakest, 1 at most.

    One value per head, positive if most methods say that the head helps. `members` are the methods,
    separated by commas or plus signs; each has its default options, and the direction if it has
    one. The method "ensemble:patch,ig" is the same. Costs what the methods cost.
    """
    names = check_members(members)
    given: dict[str, Any] = {"direction": direction, "budget": budget, "quiet": quiet}
    found = []
    with stages("ensemble", dict.fromkeys(names, 1.0), quiet) as progress:
        for name in names:
            own = {key: value for key, value in given.items() if key in find(name).options}
            with progress.stage(name):
                found.append(score_heads(model, prompts, name, metric, **own))
    for effects in found:
        if effects.unit != "head":
            raise MechheadsError(f"{effects.method} scores key-value heads. Leave it out.")
    scores = mean_rank(torch.stack([effects.scores for effects in found]))
    settings = {"members": ",".join(names), "direction": direction}
    name = f"ensemble:{','.join(names)}"
    return given_effects(model, prompts, metric, scores, name, settings, "mean rank")


ROUNDING = 1e-5  # of the strongest effect; what is smaller counts as 0


def mean_rank(scores: Float[Tensor, "method layer head"]) -> Float[Tensor, "layer head"]:
    """The mean share of other heads that are smaller, with the sign that most methods give.

    >>> mean_rank(torch.tensor([[[0.0, 2.0, -3.0]], [[0.0, 5.0, -1.0]]])).tolist()
    [[0.0, 0.75, -0.75]]
    """
    sizes = scores.flatten(1).abs()
    sizes = sizes.where(sizes > ROUNDING * sizes.amax(1, keepdim=True), 0.0)
    smaller = (sizes[:, :, None] > sizes[:, None, :]).float().sum(2) / max(1, sizes.shape[1] - 1)
    sign = scores.sign().sum(0).sign()
    return smaller.mean(0).view(scores.shape[1:]) * torch.where(sign == 0, 1.0, sign)
