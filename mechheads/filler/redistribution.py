"""ARM: near-zero activations of the first layer's MLP are moved outward, instead of adding filler.

After arXiv:2510.01032, at the authors' hook point and by their rule: on x = act(gate) of the first
layer, before the product with the other half of a gated MLP, over all tokens of a prompt together,

1. eps = 1.4826 * MAD(|x|) * c;
2. the share Pr(|x| < eps) of entries nearest to zero moves, at least 2 % and at most 25 %;
3. each keeps its sign (zeros are positive) and gets a size drawn from U(0, T), where T is the p-th
   percentile of x for positive entries and |min x| for negative ones.

The authors' (c, p): Qwen2.5-Math-1.5B (0.13, 99.5), Qwen2.5-Math-7B (0.1, 95), Qwen2.5-7B-Instruct
(0.1, 99.5), Llama-3.1-8B-Instruct (0.32, 90). Every prompt is redistributed separately with the
same draws, so that no answer depends on batching.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.models.hooks import changed_mlp
from mechheads.models.model import Model

from .conditions import ARM_C, ARM_PERCENTILE

LEAST, MOST = 0.02, 0.25


def redistribute(
    activations: Float[Tensor, "pos d_mlp"], c: float, percentile: float, seed: int
) -> Float[Tensor, "pos d_mlp"]:
    """Move the entries nearest to zero; all others are unchanged."""
    x = activations.flatten().to(torch.float32, copy=True)
    sizes = x.abs()
    eps = 1.4826 * (sizes - sizes.median()).abs().median() * c
    share = (sizes < eps).float().mean().clamp(LEAST, MOST).item()
    moved = sizes.topk(round(share * len(x)), largest=False).indices
    top = x.kthvalue(math.ceil(percentile / 100 * len(x))).values.clamp(min=0)
    drawn = torch.rand(activations.shape, generator=torch.Generator().manual_seed(seed))
    size = drawn.flatten().to(x)[moved]
    x[moved] = torch.where(x[moved] >= 0, size * top, size * x.min())
    return x.view(activations.shape).to(activations.dtype)


@contextmanager
def arm(
    model: Model, *, c: float = ARM_C, percentile: float = ARM_PERCENTILE, seed: int = 0
) -> Iterator[None]:
    """While active, the model runs with ARM; afterwards it is unchanged."""

    def change(rows: Float[Tensor, "row pos d_mlp"]) -> Tensor:
        return torch.stack([redistribute(row, c, percentile, seed) for row in rows])

    with changed_mlp(model, 0, change):
        yield
