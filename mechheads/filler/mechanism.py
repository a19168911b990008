"""Whether filler shrinks a head's weights on the original tokens by one factor per query.

Additional keys enlarge the softmax denominator: if the scores of the original keys do not change,
query i's weights on all of them shrink by the same factor, 1 - (the attention on the run).

1. For late queries i and original keys j <= i: r_ij = log A'_ij - log A_ij, excluding sinks.
2. Subtract the query's mean and average over queries: d_j, 0 for all keys if there is one factor.
3. Friedman test over prompts: do some keys have a larger d than others?

The scores do change where the run shifts the tokens after it to other positions, and in later
layers; then the test rejects.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from scipy import stats
from torch import Tensor

from mechheads.models.hooks import with_patterns
from mechheads.models.model import Model

from .insertion import Inserted

ROUNDING = 1e-4  # of r: rounding error of a float32 softmax


@dataclass(frozen=True)
class Mechanism:
    """What a condition's run does to a head's weights from later queries.

    `mass` is the share of attention on the run, `factor` the mean over queries of what is left of
    the original weights (geometric mean over keys): 1 - mass if there is one factor. `spread` is
    the attention-weighted standard deviation of its logarithm over a query's keys, and `p_value`
    the probability of such differences between keys if there were one factor per query.
    """

    NOT_FINITE: ClassVar = ("factor", "spread", "p_value")

    condition: str
    mass: float
    factor: float
    spread: float
    p_value: float


def only_original(
    pattern: Float[Tensor, "*head query key"], prompt: Inserted
) -> Float[Tensor, "*head token token"]:
    """The pattern without the run's queries and keys."""
    kept = prompt.original
    return pattern[..., kept, :][..., kept]


@torch.inference_mode()
def late_weights(
    model: Model, prompts: Sequence[Inserted], head: tuple[int, int], cut: int
) -> tuple[Float[Tensor, "prompt query token"], Float[Tensor, "prompt query"]]:
    """Weights from the queries after the run: on each original key, and on the whole run."""
    keys, mass = [], []
    for prompt in prompts:

        def see(layer: int, pattern: Tensor, prompt: Inserted = prompt) -> None:
            if layer == head[0]:
                own = pattern[0, head[1]].double().cpu()
                keys.append(only_original(own, prompt)[cut:])
                mass.append(own[cut + prompt.run :, cut : cut + prompt.run].sum(1))

        with_patterns(model, torch.tensor([prompt.ids]), see)
    return torch.stack(keys), torch.stack(mass)


def mechanism_of(
    condition: str,
    before: Float[Tensor, "prompt query token"],
    now: Float[Tensor, "prompt query token"],
    mass: Float[Tensor, "prompt query"],
    *,
    sink: bool = False,
) -> Mechanism:
    """Test for one factor per query, from the weights of the same queries and keys."""
    before, now = before[..., int(sink) :], now[..., int(sink) :]
    seen = (before > 0) & (now > 0)
    ratio = torch.where(seen, now.log() - before.log(), torch.nan)
    own = ratio.nanmean(-1, keepdim=True)
    weight = before * seen
    total = weight.sum(-1, keepdim=True)
    middle = (weight * ratio).nansum(-1, keepdim=True) / total
    variance = (weight * (ratio - middle) ** 2).nansum() / total.sum()
    return Mechanism(
        condition,
        mass.mean().item(),
        own.exp().nanmean().item(),
        variance.sqrt().item(),
        _friedman((ratio - own).nanmean(1)),
    )


def _friedman(by_key: Float[Tensor, "prompt token"]) -> float:
    by_key = by_key[:, ~by_key.isnan().any(0)]
    if by_key.shape[1] < 3 or len(by_key) < 2:
        return float("nan")
    if by_key.abs().max() < ROUNDING:
        return 1.0
    tested: Any = stats.friedmanchisquare(*by_key.T.numpy())
    return float(tested.pvalue)
