"""Test head roles on held-out prompts by closing or opening the first heads of an order.

Each seed has its own G+ as the base and its own order of heads. The gates of the first k heads are
set to 0 or to 1, and delta(k) is the resulting difference in the log probability of the target (sum
over its tokens, mean over prompts). Expected: facilitating heads lower it steadily, irrelevant ones
leave it near 0, and interfering ones raise it above 0 until they run out. Heads with exactly equal
scores, e.g. those pulled to the limit, come in random order.
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

    def check(self) -> None:
        """Raise a ValueError if stored curves cannot be ours."""
        if self.orders != ROLES or self.ks != tuple(sorted(set(self.ks))):
            raise ValueError("it has unknown orders, or numbers of heads that do not increase")

    def band(self, order: str) -> tuple[Float[Tensor, " k"], Float[Tensor, " k"]]:
        """The middle 95% of the seeds."""
        return ends(self.values[self.orders.index(order)])

    def mean(self, order: str) -> Float[Tensor, " k"]:
        """The mean over seeds."""
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
        """delta of every order, halfway along the curve."""
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
        return f"{self.task} on {self.model}, {found['k']} heads closed, in nats: {listed}."


def grid(heads: int, most: int, points: int | None) -> tuple[int, ...]:
    """Every k from 0 to `most`, or `points` of them, evenly spaced."""
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
    """The base with the gates of its k top heads closed, and open; the seed breaks ties."""
    mixed = torch.randperm(score.numel(), generator=torch.Generator().manual_seed(seed))
    order = mixed[torch.sort(score.flatten()[mixed], descending=True, stable=True).indices]
    made = base.flatten().repeat(2, len(ks), 1)
    for i, k in enumerate(ks):
        made[0, i, order[:k]] = 0.0
        made[1, i, order[:k]] = 1.0
    return made.unflatten(2, base.shape)
