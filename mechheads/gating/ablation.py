"""Tests the roles on held-out prompts: the first heads of an order are shut, or opened.

For each seed, with its own G+ for a base and its own order of heads: the gates of the first k heads
become 0 or 1, and delta(k) is the difference that this makes to the log probability of the target
(sum over its tokens, mean over prompts). Expected: facilitating heads bring it down steadily,
irrelevant ones leave it near 0, interfering ones lift it above 0 until they run out. Heads of
exactly the same score, such as those that a pull took to its end, come in a random order.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.engine.head_subsets import measure_subsets
from mechheads.errors import MechheadsError
from mechheads.models.model import Model
from mechheads.prompts import Prompts
from mechheads.runs.result import Result
from mechheads.scoring.gate_roles import ROLES, Gates
from mechheads.scoring.statistics import ends

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Ablation(Result):
    """delta(k) in nats for the orders by facilitation, irrelevance and interference."""

    task: str
    model: str
    ks: tuple[int, ...]
    values: Float[Tensor, "order seed k"]
    prompts: int
    note: str = ""
    orders: tuple[str, ...] = field(default=ROLES)

    def band(self, order: str) -> tuple[Float[Tensor, " k"], Float[Tensor, " k"]]:
        """The middle 95 % of the seeds."""
        return ends(self.values[self.orders.index(order)])

    def mean(self, order: str) -> Float[Tensor, " k"]:
        """Over seeds."""
        return self.values[self.orders.index(order)].mean(0)

    def frame(self) -> "pd.DataFrame":
        """A tidy frame: order, k, delta, low, high."""
        import pandas as pd

        rows = []
        for order in self.orders:
            columns = (self.mean(order).tolist(), *(end.tolist() for end in self.band(order)))
            rows += [(order, k, *values) for k, *values in zip(self.ks, *columns, strict=True)]
        return pd.DataFrame(rows, columns=pd.Index(["order", "k", "delta", "low", "high"]))

    @property
    def headline(self) -> dict[str, Any]:
        """delta of every order, half-way along the curve."""
        middle = len(self.ks) // 2
        return {
            "k": self.ks[middle],
            **{order: self.mean(order)[middle].item() for order in self.orders},
        }

    @property
    def sentence(self) -> str:
        """The same in words."""
        found = self.headline
        listed = ", ".join(f"{order} {found[order]:+.2f}" for order in self.orders)
        return f"{self.task} on {self.model}, {found['k']} heads shut, in nats: {listed}."


def grid(heads: int, most: int, points: int | None) -> tuple[int, ...]:
    """Every k from 0 to `most`, or so many of them, evenly."""
    if most < 1:
        raise MechheadsError(f"--k takes 1 or more, got {most}.")
    if points is not None and points < 2:
        raise MechheadsError(f"--points takes 2 or more, got {points}.")
    last = min(most, heads)
    if points is None or points > last:
        return tuple(range(last + 1))
    return tuple(sorted({round(i * last / (points - 1)) for i in range(points)}))


def ablate(
    model: Model,
    found: Gates,
    prompts: Prompts,
    ks: Sequence[int],
    *,
    budget: int | None = None,
    quiet: bool = False,
) -> Ablation:
    """delta(k) of every order and seed, on prompts that the gates were not fitted to."""
    keep = torch.stack(
        [
            masks(found.plus[seed], found.score(order)[seed], ks, seed)
            for order in ROLES
            for seed in range(len(found.plus))
        ]
    ).float()
    values = measure_subsets(
        model,
        prompts,
        keep.flatten(0, 2),
        "logprob",
        replacement="zero",
        budget=budget,
        quiet=quiet,
    )
    shut, opened = values.mean(1).view(len(ROLES), len(found.plus), 2, len(ks)).unbind(2)
    batch, updates, seeds = found.settings["batch"], found.losses.shape[2], len(found.plus)
    note = f"{seeds} seeds, {updates} updates, batch {batch}"
    return Ablation(found.task, found.model, tuple(ks), shut - opened, len(prompts), note)


def masks(
    base: Float[Tensor, "layer head"],
    score: Float[Tensor, "layer head"],
    ks: Sequence[int],
    seed: int,
) -> Float[Tensor, "2 k layer head"]:
    """The base with the gates of its k highest heads shut, and with them open; the seed breaks
    ties.
    """
    mixed = torch.randperm(score.numel(), generator=torch.Generator().manual_seed(seed))
    order = mixed[torch.sort(score.flatten()[mixed], descending=True, stable=True).indices]
    made = base.flatten().repeat(2, len(ks), 1)
    for i, k in enumerate(ks):
        made[0, i, order[:k]] = 0.0
        made[1, i, order[:k]] = 1.0
    return made.unflatten(2, base.shape)
