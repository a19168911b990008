"""ARM: the first layer's MLP with its near-zero activations moved outward, instead of a filler.

After arXiv:2510.01032: filler makes near-zero activations of the MLPs rarer and large ones more
common, and the activation redistribution module does so directly, at the first layer, after the
nonlinearity. Of every token's activations the share `share` that is nearest to zero is moved away
from it to `reach` times the largest of them, to the side on which it is; exact zeros go to a side
that is drawn at random, by the seed.

The paper's abstract and reviews say which activations move and where to; the exact schedule of its
threshold was not at hand when this was written, so that `share` and `reach` are ours.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor

from ..errors import MechheadsError
from ..models import Model, changed_mlp

SHARE, REACH = 0.02, 2.0


def redistribute(
    activations: Float[Tensor, "row pos d_mlp"], share: float, reach: float, seed: int
) -> Float[Tensor, "row pos d_mlp"]:
    """Move the entries nearest to zero outward; all others stay as they are."""
    count = round(share * activations.shape[-1])
    if count == 0:
        return activations
    sizes = activations.abs()
    limit = sizes.kthvalue(count, dim=-1, keepdim=True).values
    generator = torch.Generator().manual_seed(seed)
    coin = torch.randint(0, 2, activations.shape[-1:], generator=generator) * 2.0 - 1.0
    side = torch.where(activations == 0, coin.to(activations), activations.sign())
    return torch.where(sizes <= limit, side * reach * limit, activations)


@contextmanager
def arm(
    model: Model, *, share: float = SHARE, reach: float = REACH, seed: int = 0
) -> Iterator[None]:
    """While active, the model runs with it; afterwards it is as it was."""
    if not 0 <= share <= 1:
        raise MechheadsError(f"--arm-share takes 0 to 1, got {share}.")
    if not reach >= 0:
        raise MechheadsError(f"--arm-reach takes 0 or more, got {reach}.")
    with changed_mlp(model, 0, lambda x: redistribute(x, share, reach, seed)):
        yield
