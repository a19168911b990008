"""The explained-effect curve: how much of the metric the first k heads of a ranking explain.

f(k) = (m(first k kept) - m(none kept)) / (m(all kept) - m(none kept)), where m is the metric's
mean over prompts. Heads that are not kept are patched from the corrupted run (or replaced by zero,
the mean or the position mean); MLPs are recomputed. f(0) = 0 and f(all) = 1 by construction; in
between, the curve can leave that range if heads work against the task. This is MIB's faithfulness.

MIB (Mueller et al. 2025, arXiv:2504.13151) integrates f at ten shares of the heads by the trapezoid
rule, and ranks the heads differently for each of its numbers:
- CPR, the area under f, of the ranking by signed effect (it rewards heads that help most);
- CMD, the area between f and 1, of the ranking by size (it rewards heads that matter, either way).
Ours beside them, `area_under` and `area_from_1`, are both of the ranking that the curve draws. MIB
also ranks MLPs and the input, or edges; here only heads are ranked, and everything else is kept.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mechheads import metrics
from mechheads.engine.head_subsets import measure_subsets, nested
from mechheads.engine.paired_runs import REPLACEMENTS
from mechheads.errors import MechheadsError
from mechheads.heads import read_heads
from mechheads.metrics import MetricLike
from mechheads.models.model import Model, model_name, shape_of
from mechheads.prompts import Prompts, check_given
from mechheads.runs.result import Result
from mechheads.scoring.effects import HeadEffects
from mechheads.scoring.statistics import bootstrap, ends, resample, standard_error

from .circuit import Circuit, Head

if TYPE_CHECKING:
    import pandas as pd


# Shares of all heads at which MIB measures f.
SHARES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
# Relative differences below this are rounding errors of float32.
ROUNDING = 1e-5


class MeasuredCurve(Result):
    """What the curves of heads and of edges share: the metric of every prompt at every point."""

    task: str
    metric: str
    settings: Mapping[str, Any]
    values: Float[Tensor, "point prompt"]

    @property
    def explained(self) -> Float[Tensor, " point"]:
        """f at every point, from none to all."""
        return explained(self.values.mean(1))

    def resampled(self, seed: int = 0) -> Float[Tensor, "draw point"]:
        """f of bootstrap samples of the prompts."""
        n = self.values.shape[1]
        means = (resample(n, seed) @ self.values.T) / n
        return explained(means)

    def interval(
        self, level: float = 0.95
    ) -> tuple[Float[Tensor, " point"], Float[Tensor, " point"]]:
        """Interval of f over prompts (symmetric bootstrap-t of `explained_by_prompt`)."""
        return bootstrap(explained_by_prompt(self.values).T, level)

    @property
    def gap(self) -> tuple[float, float]:
        """The effect to explain, metric with all kept less none, and its standard error."""
        gaps = self.values[-1] - self.values[0]
        return float(gaps.mean()), float(standard_error(gaps))

    @property
    def warnings(self) -> tuple[str, ...]:
        """A warning if the effect to explain may be chance: shares of it then mean nothing."""
        gap, error = self.gap
        if abs(gap) > 2 * error:
            return ()
        return (
            f"The effect to explain on {self.task} is {gap:.3g} ± {error:.3g} (standard error), "
            "which may be 0: shares of it mean nothing. Use more prompts or another metric.",
        )


@dataclass(frozen=True)
class Curve(MeasuredCurve):
    """The metric of every prompt with the first k heads of the ranking kept, for every k.

    `random_explained` is f of random rankings at the head counts `random_at`. `by_sign` and
    `by_size` are the metric with MIB's shares of the heads kept, ranked by signed effect and by
    size; None if only a ranking was given, which then stands for both.
    """

    task: str
    model: str
    metric: str
    ranking: tuple[Head, ...]
    values: Float[Tensor, "k prompt"]
    random_explained: Float[Tensor, "draw point"]
    random_at: tuple[int, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    by_sign: Float[Tensor, "share judged"] | None = None
    by_size: Float[Tensor, "share judged"] | None = None

    def check(self) -> None:
        """Raise a ValueError if a stored curve cannot be one."""
        metrics.check_name(self.metric)
        layers = [layer for layer, _ in self.ranking]
        if len(set(self.ranking)) < len(self.ranking) or min(min(h) for h in self.ranking) < 0:
            raise ValueError(f"the ranking of {len(layers)} heads has one twice, or below 0")
        points = self.random_at
        if (
            len(self.values) != len(self.ranking) + 1
            or len(points) != self.random_explained.shape[1]
        ):
            raise ValueError("its points do not match its ranking")
        if list(points) != sorted(set(points)) or (points[0], points[-1]) != (0, len(layers)):
            raise ValueError("its random rankings were measured at impossible points")
        for part in (self.by_sign, self.by_size):
            if part is not None and part.shape != (len(SHARES), self.values.shape[1]):
                raise ValueError("MIB's shares were measured on other prompts, or not all of them")
        if self.settings.get("replacement") not in REPLACEMENTS:
            raise ValueError("its settings lack the replacement")

    def random_band(self, level: float = 0.95) -> tuple[Tensor, Tensor, Tensor]:
        """Mean, low and high of f(k) over the random rankings, linearly interpolated."""
        low, high = ends(self.random_curves, level)
        return self.random_curves.mean(0), low, high

    @property
    def random_curves(self) -> Float[Tensor, "draw k"]:
        """f(k) of the random rankings at every k, linearly interpolated."""
        every = np.arange(len(self.ranking) + 1)
        rows = [np.interp(every, self.random_at, row.numpy()) for row in self.random_explained]
        return torch.from_numpy(np.stack(rows)).float()

    @property
    def headline(self) -> dict[str, Any]:
        """The numbers that sum it up."""
        areas = {"area_under": self.area_under, "area_from_1": self.area_from_1}
        return {"needed": self.needed(), "cpr": self.cpr, "cmd": self.cmd, **areas}

    @property
    def sentence(self) -> str:
        """The same in words."""
        return (
            f"The first {self.needed()} of {len(self.ranking)} heads explain 90% of {self.task} on "
            f"{self.model}."
        )

    def needed(self, threshold: float = 0.9, *, stays: bool = False) -> int:
        """The smallest k at which f reaches the threshold, or from which it stays there."""
        return int(needed(self.explained[None], threshold, stays=stays)[0])

    def circuit(self, k: int) -> Circuit:
        """The first k heads."""
        if not 0 <= k <= len(self.ranking):
            raise MechheadsError(f"k is {k}, but the ranking has {len(self.ranking)} heads.")
        return Circuit(f"{self.task} top {k}", self.ranking[:k], self.task, self.model)

    def needed_interval(
        self, threshold: float = 0.9, *, stays: bool = False, level: float = 0.95
    ) -> tuple[float, float]:
        """Bootstrap interval of `needed`, over prompts."""
        low, high = ends(needed(self.resampled(), threshold, stays=stays), level)
        return float(low), float(high)

    @property
    def cpr(self) -> float:
        """MIB's CPR: area under f of the ranking by signed effect; higher is better.

        It can exceed 1 where heads that hinder are left out.
        """
        return mib_area(self._at_shares(self.by_sign))

    @property
    def cmd(self) -> float:
        """MIB's CMD: area between f and 1 of the ranking by size; lower is better, 0 is best."""
        return mib_area((1 - self._at_shares(self.by_size)).abs())

    @property
    def area_under(self) -> float:
        """Area under f at MIB's shares, of the ranking drawn; CPR if that is by signed effect."""
        return mib_area(self._at_shares(None))

    @property
    def area_from_1(self) -> float:
        """Area between f and 1 at MIB's shares, of the ranking drawn; CMD if that is by size."""
        return mib_area((1 - self._at_shares(None)).abs())

    @property
    def random_cpr(self) -> float:
        """CPR of random rankings, on average: they have no sign, so this is the area under f."""
        return mib_area(self.random_curves.mean(0)[mib_counts(len(self.ranking))])

    @property
    def random_cmd(self) -> float:
        """CMD of random rankings, on average."""
        at = self.random_curves[:, mib_counts(len(self.ranking))]
        return float(np.mean([mib_area((1 - row).abs()) for row in at]))

    def _at_shares(self, other: Tensor | None) -> Float[Tensor, " share"]:
        """f at MIB's shares, of another ranking or of this one."""
        if other is None:
            return self.explained[mib_counts(len(self.ranking))]
        none, whole = self.values[0].mean(), self.values[-1].mean()
        return explained(torch.stack([none, *other.mean(1), whole]))[1:-1]

    def frame(self) -> "pd.DataFrame":
        """k, layer, head, explained with its interval, and the same for random rankings."""
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


def explained_effect_curve(
    model: Model,
    prompts: Prompts,
    ranking: Any,
    metric: MetricLike | None = None,
    *,
    replacement: str = "corrupt",
    draws: int = 10,
    points: int = 9,
    also: Sequence[int] = (),
    signed: bool = False,
    seed: int = 0,
    budget: int | None = None,
    quiet: bool = False,
) -> Curve:
    """Keep the first k heads of a ranking, for every k, and measure what they explain.

    Args:
        model: what `mechheads.load` returns
        prompts: what `tasks.make` returns; use other prompts than those that ranked the heads
        ranking: HeadEffects, or every head once, as (layer, head) or L9H6, most important first.
            CPR and CMD need effects: of a ranking alone, both are its own areas
        metric: a name in `mechheads.METRICS`, or your own function; default: the task's own
        replacement: what replaces heads not kept: "corrupt", "zero", "mean" or "position_mean"
        draws: number of random rankings to compare with
        points: number of evenly spaced k at which random rankings are measured, plus MIB's shares
        also: further head counts at which random rankings are measured
        signed: rank HeadEffects by the signed effect instead of its size
        seed: seed of the random rankings
        budget: tokens per pass, which bounds memory; default: chosen for the device
        quiet: show no progress bar

    Returns:
        Curve: f(k) from 0 (no heads) to 1 (all heads). Costs a pass per k and per point of a random
        ranking, less what nested subsets share. MIB's numbers need both rankings: the one not drawn
        is measured at MIB's ten shares alone.

    >>> import circuits, mechheads, tasks
    >>> model = mechheads.load("mini")
    >>> ranking, judging = tasks.make("ioi", model, n=32).halves()
    >>> effects = mechheads.score_heads(model, ranking, "attribution", quiet=True)
    >>> curve = circuits.explained_effect_curve(model, judging, effects, quiet=True)
    >>> curve.explained[[0, -1]].tolist()
    [0.0, 1.0]
    >>> curve.cmd == curve.area_from_1  # both of the ranking by size
    True
    """
    layers, heads = shape_of(model).grid
    check_given(prompts)
    every = [(layer, head) for layer in range(layers) for head in range(heads)]
    rankings: list[list[Head]] = []
    if isinstance(ranking, HeadEffects):
        rankings = [ranking.ranking(signed=True), ranking.ranking(signed=False)]
        ranking = rankings[0 if signed else 1]
    else:
        ranking = read_heads(ranking)
    if sorted(ranking) != every:
        raise MechheadsError(
            f"A ranking for {model_name(model)} must have each of its {len(every)} heads once."
        )
    check_draws(draws)
    if points < 2:
        raise MechheadsError(f"points must be 2 or more, got {points}.")
    rng = random.Random(seed)
    at = sorted({*random_points(len(every), points), *also})
    if not 0 <= at[0] <= at[-1] <= len(every):
        raise MechheadsError(f"also takes numbers of heads from 0 to {len(every)}, got {also}.")
    orders = [rng.sample(every, len(every)) for _ in range(draws)]
    shares = mib_counts(len(every))
    keep = [
        nested(ranking, layers, heads),
        *(nested(order, layers, heads)[at] for order in orders),
        *(nested(other, layers, heads)[shares] for other in rankings),
    ]
    values = measure_subsets(
        model, prompts, torch.cat(keep), metric, replacement=replacement, budget=budget, quiet=quiet
    )
    sizes = [len(every) + 1, draws * len(at), *[len(shares)] * len(rankings)]
    own, others, *mib = values.split(sizes)
    check_gap(model, prompts, own[0], own[-1])
    return Curve(
        prompts.task,
        model_name(model),
        metrics.choose(metric, prompts).name,
        tuple(ranking),
        own,
        explained(others.mean(1).unflatten(0, (draws, len(at)))),
        tuple(at),
        {"replacement": replacement, "draws": draws, "seed": seed},
        *(part.clone() for part in mib),
    )


def check_gap(
    model: Model, prompts: Prompts, none: Float[Tensor, " prompt"], whole: Float[Tensor, " prompt"]
) -> None:
    """Raise an error if there is no effect to explain."""
    if not has_gap(none, whole):
        raise MechheadsError(
            f"{model_name(model)} scores the same on {prompts.task} with all heads and with "
            f"none ({whole.mean():.7g} and {none.mean():.7g}), so there is nothing to explain. "
            "Use another task, metric or replacement."
        )


def has_gap(none: Float[Tensor, " prompt"], whole: Float[Tensor, " prompt"]) -> bool:
    """Whether the metric with all heads differs from that with none by more than rounding."""
    if not bool(none.isfinite().all() and whole.isfinite().all()):
        return False
    size = float(torch.maximum(none.abs(), whole.abs()).mean())
    return abs(float((whole - none).mean())) > ROUNDING * size


def random_points(heads: int, points: int) -> list[int]:
    """`points` evenly spaced head counts from none to all, plus MIB's shares."""
    even = {round(i * heads / (points - 1)) for i in range(points)}
    return sorted(even | set(mib_counts(heads)))


def mib_counts(heads: int) -> list[int]:
    """MIB's shares of the heads, each rounded down to whole heads."""
    return [int(share * heads) for share in SHARES]


def check_draws(draws: int) -> None:
    """Raise an error if there are too few random rankings for a band."""
    if draws < 2:
        raise MechheadsError(f"--draws takes 2 or more random rankings, got {draws}.")


def explained(
    means: Float[Tensor, "*draw k"], none: int = 0, whole: int = -1
) -> Float[Tensor, "*draw k"]:
    """f from the mean metric; `none` and `whole` index the means with no heads and all heads."""
    bottom, top = means[..., none, None], means[..., whole, None]
    return (means - bottom) / (top - bottom)


def explained_by_prompt(
    values: Float[Tensor, "k prompt"], none: int = 0, whole: int = -1
) -> Float[Tensor, "k prompt"]:
    """f as a mean over prompts: their mean is f, and they spread as f does between samples.

    f is a ratio of two means; this is its linearisation (delta method) at the measured means.
    """
    gains = values - values[none]
    share, gap = explained(values.mean(1), none, whole), gains[whole].mean()
    return share[:, None] + (gains - share[:, None] * gains[whole]) / gap


def needed(
    curves: Float[Tensor, "draw k"], threshold: float, *, stays: bool = False
) -> Float[Tensor, " draw"]:
    """For each curve, the smallest k that reaches the threshold, or from which it stays there.

    The last k if none does; NaN if the curve is not finite.
    """
    above = curves >= threshold - 1e-6
    above[:, -1] = True
    if stays:
        above = above.flip(1).cummin(1).values.flip(1)
    found = above.float().argmax(1).float()
    return found.where(curves.isfinite().all(1), torch.nan)


def mib_area(at_shares: Float[Tensor, " share"]) -> float:
    """Trapezoid rule over MIB's shares of the heads."""
    return float(torch.trapezoid(at_shares, torch.tensor(SHARES)))
