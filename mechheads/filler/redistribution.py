"""ARM: near-zero activations of the first layer's MLP are moved outward, instead of adding filler.

After arXiv:2510.01032, at the authors' hook point and by their rule: on x = act(gate) of the first
layer, before the product with the other half of a gated MLP, over all tokens of a prompt together,

1. eps = 1.4826 * MAD(|x|) * c;
2. the share Pr(|x| < eps) of entries nearest to zero moves, at least pmin and at most 25 %;
3. each keeps its sign (zeros are positive) and gets a size drawn from U(0, T), where T is the p-th
   percentile of x for positive entries and |min x| for negative ones.

The authors' (c, p): Qwen2.5-Math-1.5B (0.13, 99.5), Qwen2.5-Math-7B (0.1, 95), Qwen2.5-7B-Instruct
(0.1, 99.5), Llama-3.1-8B-Instruct (0.32, 90). Their pmin is 0.2 for Llama models, and 0.02 for Qwen
and Gemma, which other families get here too. Every prompt is redistributed separately with the
same draws, so that no answer depends on batching.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.models.hooks import changed_mlp
from mechheads.models.model import Model, family_of

from .conditions import ARM_C, ARM_PERCENTILE, ARM_PMAX, ARM_PMIN, ARM_USUAL_PMIN


def redistribute(
    activations: Float[Tensor, "pos d_mlp"], c: float, percentile: float, pmin: float, seed: int
) -> Float[Tensor, "pos d_mlp"]:
    """Move the entries nearest to zero; all others are unchanged."""
    x = activations.flatten().to(torch.float32, copy=True)
    sizes = x.abs()
    eps = 1.4826 * (sizes - sizes.median()).abs().median() * c
    share = (sizes < eps).float().mean().clamp(pmin, ARM_PMAX).item()
    moved = sizes.topk(round(share * len(x)), largest=False).indices
    top = x.kthvalue(math.ceil(percentile / 100 * len(x))).values.clamp(min=0)
    drawn = torch.rand(activations.shape, generator=torch.Generator().manual_seed(seed))
    size = drawn.flatten().to(x)[moved]
    x[moved] = torch.where(x[moved] >= 0, size * top, size * x.min())
    return x.view(activations.shape).to(activations.dtype)


@contextmanager
def arm(
    model: Model,
    *,
    c: float = ARM_C,
    percentile: float = ARM_PERCENTILE,
    pmin: float | None = None,
    seed: int = 0,
) -> Iterator[None]:
    """While active, the model runs with ARM; afterwards it is unchanged.

    `pmin` defaults to the authors' value for the model's family.
    """
    least = ARM_PMIN.get(family_of(model), ARM_USUAL_PMIN) if pmin is None else pmin

    def change(rows: Float[Tensor, "row pos d_mlp"]) -> Tensor:
        return torch.stack([redistribute(row, c, percentile, least, seed) for row in rows])

    with changed_mlp(model, 0, change):
        yield
