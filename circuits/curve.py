"""The explained-effect curve: how much of the metric the first k heads of a ranking carry.

f(k) = (m(first k kept) - m(none kept)) / (m(all kept) - m(none kept)), means over prompts first,
ratio then. Heads that are not kept are patched from the corrupted run (or replaced by zero, mean,
position mean); MLPs run again. f(0) = 0 and f(all) = 1 by construction; in between the curve may
leave that range, where heads work against the task. It is MIB's faithfulness.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.errors import MechheadsError
from mechheads.masks import measure_masks, nested
from mechheads.models import Model
from mechheads.prompts import Prompts
from mechheads.statistics import resample

from .circuit import Circuit, Head

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Curve:
    """The metric of every prompt with the first k heads of the ranking kept, for every k.

    `random_values` are the same for rankings drawn at random, as means over prompts.
    """

    task: str
    model: str
    metric: str
    ranking: tuple[Head, ...]
    values: Float[Tensor, "k prompt"]
    random_explained: Float[Tensor, "draw k"]
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def explained(self) -> Float[Tensor, " k"]:
        """f(k), from k = 0 to all heads."""
        return explained(self.values.mean(1))

    def resampled(self, seed: int = 0) -> Float[Tensor, "draw k"]:
        """f(k) of prompts drawn again and again, with replacement."""
        n = self.values.shape[1]
        means = (resample(n, seed) @ self.values.T) / n
        return explained(means)

    def interval(self, level: float = 0.95) -> tuple[Float[Tensor, " k"], Float[Tensor, " k"]]:
        """Bootstrap interval of f(k) over prompts."""
        return _ends(self.resampled(), level)

    def random_band(self, level: float = 0.95) -> tuple[Tensor, Tensor, Tensor]:
        """Mean, low and high of f(k) over the random rankings."""
        low, high = _ends(self.random_explained, level)
        return self.random_explained.mean(0), low, high

    def needed(self, threshold: float = 0.9, *, stays: bool = False) -> int:
        """The smallest k at which f reaches the threshold, or from which it stays there."""
        return int(needed(self.explained[None], threshold, stays=stays)[0])

    def circuit(self, k: int) -> Circuit:
        """The first k heads."""
        if not 0 <= k <= len(self.ranking):
            raise MechheadsError(f"k is {k}, the ranking has {len(self.ranking)} heads.")
        return Circuit(f"{self.task} top {k}", self.ranking[:k], self.task, self.model)

    @property
    def cpr(self) -> float:
        """MIB's CPR: area under f over the share of heads kept; higher is better."""
        return _area(self.explained)

    @property
    def cmd(self) -> float:
        """MIB's CMD: area between f and 1; lower is better, 0 is best."""
        return _area((1 - self.explained).abs())

    def frame(self) -> "pd.DataFrame":
        """k, layer, head, explained and its interval, and those of random rankings."""
        import pandas as pd

        low, high = self.interval()
        mean, random_low, random_high = self.random_band()
        heads = [(None, None), *self.ranking]
        return pd.DataFrame(
            {
                "k": range(len(heads)),
                "layer": pd.array([layer for layer, _ in heads], dtype="Int64"),
                "head": pd.array([head for _, head in heads], dtype="Int64"),
                "explained": self.explained.numpy(),
                "ci_low": low.numpy(),
                "ci_high": high.numpy(),
                "random_mean": mean.numpy(),
                "random_low": random_low.numpy(),
                "random_high": random_high.numpy(),
            }
        )


def trace(
    model: Model,
    prompts: Prompts,
    ranking: Sequence[Head],
    metric: str | None = None,
    *,
    replacement: str = "corrupt",
    draws: int = 10,
    seed: int = 0,
    budget: int | None = None,
    quiet: bool = False,
) -> Curve:
    """Keep the first k heads for every k, and those of random rankings; all masks in a few passes.

    Use prompts that did not rank the heads.
    """
    from mechheads import metrics

    layers, heads = model.cfg.n_layers, model.cfg.n_heads
    every = [(layer, head) for layer in range(layers) for head in range(heads)]
    if sorted(ranking) != every:
        raise MechheadsError(
            f"A ranking for {model.cfg.model_name} has each of its {len(every)} heads once."
        )
    if draws < 1:
        raise MechheadsError(f"Random rankings: 1 or more, got {draws}.")
    rng = random.Random(seed)
    orders = [list(ranking), *(rng.sample(every, len(every)) for _ in range(draws))]
    keep = torch.cat([nested(order, layers, heads) for order in orders])
    values = measure_masks(
        model, prompts, keep, metric, replacement=replacement, budget=budget, quiet=quiet
    ).unflatten(0, (len(orders), len(every) + 1))
    found = explained(values[0].mean(1))
    if not bool(found.isfinite().all()):
        raise MechheadsError(
            f"{model.cfg.model_name} scores the same on {prompts.task} with all heads and with "
            "none, so there is nothing to explain."
        )
    return Curve(
        prompts.task,
        model.cfg.model_name,
        metrics.find(metric or prompts.metric).name,
        tuple(ranking),
        values[0],
        explained(values[1:].mean(2)),
        {"replacement": replacement, "draws": draws, "seed": seed},
    )


def explained(means: Float[Tensor, "*draw k"]) -> Float[Tensor, "*draw k"]:
    """f(k) from the mean metric at every k."""
    none, whole = means[..., :1], means[..., -1:]
    return (means - none) / (whole - none)


def needed(
    curves: Float[Tensor, "draw k"], threshold: float, *, stays: bool = False
) -> Float[Tensor, " draw"]:
    """For each curve the smallest k that reaches the threshold, or from which it stays there."""
    above = curves >= threshold - 1e-6
    if stays:
        above = above.flip(1).cummin(1).values.flip(1)
    return above.float().argmax(1).float()


def _ends(draws: Float[Tensor, "draw k"], level: float) -> tuple[Tensor, Tensor]:
    ends = torch.tensor([(1 - level) / 2, (1 + level) / 2])
    low, high = torch.quantile(draws, ends, dim=0)
    return low, high


def _area(values: Float[Tensor, " k"]) -> float:
    """Trapezoids over the share of heads kept, from 0 to 1."""
    return float(torch.trapezoid(values, dx=1 / (len(values) - 1)))
