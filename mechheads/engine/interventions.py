"""The one primitive that changes heads: what every head's z becomes, in many variants at once.

z is a head's output before W_O (`blocks.L.attn.hook_z`). Every method and every curve goes through
an `Intervention`, so a score and the curve that judges it cannot disagree on what changing a head
means.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
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

    With `at`, only the positions where it is true change; with `since`, only positions from it on.
    """

    keep: Float[Tensor, "variant layer head"]
    source: Sequence[Float[Tensor, "row pos head d_head"]] | None = None
    at: Bool[Tensor, "#variant #row pos"] | None = None
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
            here = self.at[:, :, where, None, None].to(z.device)
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
class SetHeads:
    """Sets the z of some heads, by (layer, head), to given values; the others are recomputed."""

    z: Mapping[tuple[int, int], Float[Tensor, "variant row pos d_head"]]

    @property
    def variants(self) -> int:
        """Number of variants."""
        return next(iter(self.z.values())).shape[0]

    @property
    def start(self) -> int:
        """The first layer with such a head."""
        return min(layer for layer, _ in self.z)

    def touches(self, layer: int) -> bool:
        """Whether the layer has such a head."""
        return any(layer == own for own, _ in self.z)

    def __call__(self, layer: int, z: Z, where: slice) -> Z:
        """A layer's new z at the positions `where`."""
        changed = z.clone()
        for (own, head), values in self.z.items():
            if own == layer:
                changed[:, :, :, head] = values[:, :, where]
        return changed

    def branch(self, layer: int, state_of: Variants) -> tuple[StateIndex, Variants, Intervention]:
        """Every variant has its own state."""
        return all_apart(self, state_of)


@dataclass(frozen=True)
class FrozenHeads:
    """Freezes all heads at their cached z, but one head of a layer, per variant, gets a new z.

    Nothing moves between positions, and only MLPs pass the difference on.
    """

    cached: Sequence[Float[Tensor, "row pos head d_head"]]
    layer: int
    heads: Sequence[int]
    z: Float[Tensor, "variant row pos d_head"]

    @property
    def variants(self) -> int:
        """Number of variants."""
        return len(self.heads)

    @property
    def start(self) -> int:
        """The layer of the heads that are not frozen."""
        return self.layer

    def touches(self, layer: int) -> bool:
        """True for every layer: all of them are frozen."""
        return True

    def __call__(self, layer: int, z: Z, where: slice) -> Z:
        """A layer's new z at the positions `where`."""
        cached = self.cached[layer][:, where]
        changed = cached.expand(self.variants, *cached.shape)
        if layer == self.layer:
            changed = changed.clone()
            for variant, head in enumerate(self.heads):
                changed[variant, :, :, head] = self.z[variant, :, where]
        return changed

    def branch(self, layer: int, state_of: Variants) -> tuple[StateIndex, Variants, Intervention]:
        """Every variant has its own state."""
        return all_apart(self, state_of)


def unchanged(shape: Shape) -> Replace:
    """The intervention that keeps every head, so that nothing changes."""
    return Replace(torch.ones(1, *shape.grid))
