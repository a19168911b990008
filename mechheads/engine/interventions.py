"""The one primitive that changes heads: what every head's z becomes, in many variants at once.

z is a head's output before W_O (`blocks.L.attn.hook_z`). Every method and every curve goes through
an `Intervention`, so a score and the curve that judges it cannot disagree on what changing a head
means.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechheads.models.model import Shape

Z = Float[Tensor, "variant row pos head d_head"]
# The state of each variant; for each state after a layer, the state before it.
Variants = Int[Tensor, " variant"]
StateIndex = Int[Tensor, " state"]


@runtime_checkable
class Intervention(Protocol):
    """What z becomes from layer `start` on, in several variants."""

    @property
    def variants(self) -> int:
        """Number of variants."""
        ...

    @property
    def start(self) -> int:
        """The first layer that changes."""
        ...

    def touches(self, layer: int) -> bool:
        """Whether the layer's z changes in any variant."""
        ...

    def __call__(self, layer: int, z: Z, where: slice) -> Z:
        """A layer's new z at the positions `where`."""
        ...

    def branch(self, layer: int, state_of: Variants) -> tuple[StateIndex, Variants, "Intervention"]:
        """Variants that are the same up to and including this layer share a state.

        Takes each variant's state before the layer. Returns, for each state after the layer, the
        state before it; each variant's state after it; and the intervention with a variant per
        state.
        """
        ...


def all_apart(
    intervention: "Intervention", state_of: Variants
) -> tuple[StateIndex, Variants, "Intervention"]:
    """The branching in which every variant has its own state."""
    return state_of, torch.arange(intervention.variants), intervention


@dataclass(frozen=True)
class Replace:
    """z becomes source + keep * (z - source): kept at 1, replaced at 0. Without a source, z * keep.

    With `at`, only that position of each variant changes; with `since`, only positions from it on.
    """

    keep: Float[Tensor, "variant layer head"]
    source: Sequence[Float[Tensor, "row pos head d_head"]] | None = None
    at: Int[Tensor, " variant"] | None = None
    since: int = 0

    @property
    def variants(self) -> int:
        """Number of variants."""
        return self.keep.shape[0]

    @property
    def start(self) -> int:
        """The first layer in which any head is not fully kept."""
        changed = (self.keep != 1).any(0).any(-1).nonzero()
        return int(changed[0]) if len(changed) else self.keep.shape[1] - 1

    def touches(self, layer: int) -> bool:
        """Whether the layer's z changes in any variant."""
        return bool((self.keep[:, layer] != 1).any())

    def __call__(self, layer: int, z: Z, where: slice) -> Z:
        """A layer's new z at the positions `where`."""
        keep = self.keep[:, layer, None, None, :, None].to(z)
        positions = torch.arange(where.start, where.stop, device=z.device)
        if self.at is not None:
            here = (positions == self.at.to(z.device)[:, None])[:, None, :, None, None]
            keep = torch.where(here, keep, 1.0)
        if self.since > where.start:
            keep = torch.where((positions >= self.since)[:, None, None], keep, 1.0)
        if self.source is None:
            return z * keep
        return torch.lerp(self.source[layer][:, where], z, keep)

    def branch(self, layer: int, state_of: Variants) -> tuple[StateIndex, Variants, "Intervention"]:
        """Variants that have kept the same heads so far share a state."""
        if self.at is not None or self.keep.requires_grad:
            return all_apart(self, state_of)
        kinds = torch.cat([state_of[:, None].to(self.keep), self.keep[:, layer]], dim=1)
        _, after = kinds.unique(dim=0, return_inverse=True)
        # One variant represents each state.
        chosen = torch.zeros(int(after.max()) + 1, dtype=torch.long)
        chosen[after] = torch.arange(len(after))
        return state_of[chosen], after, Replace(self.keep[chosen], self.source, since=self.since)


@dataclass(frozen=True)
class SetHead:
    """Sets one head's z to given values, one per variant."""

    layer: int
    head: int
    z: Float[Tensor, "variant row pos d_head"]

    @property
    def variants(self) -> int:
        """Number of variants."""
        return self.z.shape[0]

    @property
    def start(self) -> int:
        """The head's layer."""
        return self.layer

    def touches(self, layer: int) -> bool:
        """True only for the head's layer."""
        return layer == self.layer

    def __call__(self, layer: int, z: Z, where: slice) -> Z:
        """A layer's new z at the positions `where`."""
        return torch.cat(
            [z[..., : self.head, :], self.z[:, :, where, None], z[..., self.head + 1 :, :]], dim=-2
        )

    def branch(self, layer: int, state_of: Variants) -> tuple[StateIndex, Variants, Intervention]:
        """Every variant has its own state."""
        return all_apart(self, state_of)


def unchanged(shape: Shape) -> Replace:
    """The intervention that keeps every head, so that nothing changes."""
    return Replace(torch.ones(1, *shape.grid))
