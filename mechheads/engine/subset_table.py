"""Subsets of heads that are measured already, here or by several processes that share the work.

1. `SubsetShare(i, n)` stands for `measure_subsets` in one of n processes: it measures its share of
   the first subsets that are asked for, and raises `Enough`, which has them.
2. `joined` makes one table of all shares. The passes are those of a single process, so the values
   are the same to the bit.
3. A table stands for `measure_subsets`, and measures only what it does not have.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.metrics import MetricLike
from mechheads.models.model import Model
from mechheads.prompts import Prompts

from .head_subsets import measure_subsets

# A subset of heads, and the digest of the prompts.
Key = tuple[bytes, str]


@dataclass(frozen=True)
class SubsetTable:
    """The metric of every prompt with subsets of heads kept: one model, metric and replacement."""

    values: dict[Key, Float[Tensor, " prompt"]] = field(default_factory=dict)

    def __call__(
        self,
        model: Model,
        prompts: Prompts,
        keep: Float[Tensor, "variant layer head"],
        metric: MetricLike | None = None,
        **options: Any,
    ) -> Float[Tensor, "variant prompt"]:
        """The same as `measure_subsets`, but each subset is measured once."""
        keys = _keys(keep, prompts)
        new = [i for i, key in enumerate(keys) if key not in self.values]
        if new:
            found = measure_subsets(model, prompts, keep[new], metric, **options)
            self.values.update((keys[i], row) for i, row in zip(new, found, strict=True))
        return torch.stack([self.values[key] for key in keys])


@dataclass(frozen=True)
class SubsetShare:
    """The i-th of n processes that measure the same subsets; the first is 0."""

    index: int
    count: int

    def __call__(
        self,
        model: Model,
        prompts: Prompts,
        keep: Float[Tensor, "variant layer head"],
        metric: MetricLike | None = None,
        **options: Any,
    ) -> Float[Tensor, "variant prompt"]:
        """Never returns: raises `Enough` with its share of the values."""
        share = self.index, self.count
        found = measure_subsets(model, prompts, keep, metric, share=share, **options)
        raise Enough(SubsetTable(dict(zip(_keys(keep, prompts), found, strict=True))))


class Enough(Exception):
    """Ends an experiment as soon as the share of a process is measured."""

    @property
    def table(self) -> SubsetTable:
        """What this process has measured."""
        return self.args[0]


def joined(shares: Sequence[SubsetTable]) -> SubsetTable:
    """The table of all shares."""
    rows = {key: [share.values[key] for share in shares] for key in shares[0].values}
    return SubsetTable({key: torch.stack(row).sum(0) for key, row in rows.items()})


def _keys(keep: Float[Tensor, "variant layer head"], prompts: Prompts) -> list[Key]:
    digest = prompts.digest()
    return [(mask.numpy().tobytes(), digest) for mask in keep]
