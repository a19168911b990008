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

With many heads f is measured at some k, so chosen that N is exact (`circuits.points`).
"""

import random
from collections.abc import Callable, Mapping, Sequence
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
from mechheads.progress import bar
from mechheads.prompts import Prompts, check_given
from mechheads.scoring.effects import HeadEffects
from mechheads.scoring.statistics import ends

from .circuit import Circuit, Head
from .measured import (
    MeasuredCurve,
    check_gap,
    explained,
    mib_area,
    needed,
    resampled_shares,
)
from .points import (
    AUTO,
    SHARES,
    curve_points,
    may_be_missed,
    mib_counts,
    points_to_add,
    random_points,
)

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Curve(MeasuredCurve):
    """The metric of every prompt with the first k heads of the ranking kept, for each k in `at`.

    `random_explained` is f of random rankings at the head counts `random_at`. `by_sign` and
    `by_size` are the metric with MIB's shares of the heads kept, ranked by signed effect and by
    size; None if only a ranking was given, which then stands for both.
    """

    task: str
    model: str
    metric: str
    ranking: tuple[Head, ...]
    at: tuple[int, ...]
    values: Float[Tensor, "point prompt"]
    random_explained: Float[Tensor, "draw random_point"]
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
        for points, measured in (
            (self.at, len(self.values)),
            (self.random_at, self.random_explained.shape[1]),
        ):
            if len(points) != measured:
                raise ValueError("its points do not match its values")
            if list(points) != sorted(set(points)) or (points[0], points[-1]) != (0, len(layers)):
                raise ValueError("it was measured at impossible points")
        if not set(mib_counts(len(layers))) <= set(self.at):
            raise ValueError("it lacks some of MIB's shares")
        for part in (self.by_sign, self.by_size):
            if part is not None and part.shape != (len(SHARES), self.values.shape[1]):
                raise ValueError("MIB's shares were measured on other prompts, or not all of them")
        if self.settings.get("replacement") not in REPLACEMENTS:
            raise ValueError("its settings lack the replacement")

    @property
    def warnings(self) -> tuple[str, ...]:
        """Also if the threshold may be reached at a k that was not measured."""
        threshold = float(self.settings.get("threshold", 0.9))
        if not may_be_missed(self.at, self.explained, threshold):
            return super().warnings
        return (
            *super().warnings,
            f"The curve on {self.task} goes up and down below {threshold:.0%}, and may reach it "
            f"with fewer than {self.needed(threshold)} heads between the {len(self.at)} points "
            "that were measured. Measure all of them with --points all.",
        )

    def explained_at(self, k: int) -> float:
        """f(k), linearly interpolated where it was not measured."""
        return float(np.interp(k, self.at, self.explained.numpy()))

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
        """The smallest k at which f reaches the threshold, or from which it stays there.

        Exact for the threshold that the curve was measured for; else the smallest measured k.
        """
        return int(needed(self.explained[None], threshold, self.at, stays=stays)[0])

    def needed_draws(
        self, threshold: float = 0.9, *, stays: bool = False
    ) -> Float[Tensor, " draw"]:
        """`needed` in bootstrap samples of the prompts."""
        return needed(self.resampled(), threshold, self.at, stays=stays)

    def circuit(self, k: int) -> Circuit:
        """The first k heads."""
        if not 0 <= k <= len(self.ranking):
            raise MechheadsError(f"k is {k}, but the ranking has {len(self.ranking)} heads.")
        return Circuit(f"{self.task} top {k}", self.ranking[:k], self.task, self.model)

    def needed_interval(
        self, threshold: float = 0.9, *, stays: bool = False, level: float = 0.95
    ) -> tuple[float, float]:
        """Bootstrap interval of `needed`, over prompts."""
        low, high = ends(self.needed_draws(threshold, stays=stays), level)
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
            return self.explained[[self.at.index(k) for k in mib_counts(len(self.ranking))]]
        none, whole = self.values[0].mean(), self.values[-1].mean()
        return explained(torch.stack([none, *other.mean(1), whole]))[1:-1]

    def frame(self) -> "pd.DataFrame":
        """k, the head that is added last, explained with its interval, and random rankings."""
        import pandas as pd

        low, high = self.interval()
        mean, random_low, random_high = self.random_band()
        heads = [(None, None), *self.ranking]
        heads, rows = [heads[k] for k in self.at], list(self.at)
        return pd.DataFrame(
            {
                "k": rows,
                "layer": pd.array([layer for layer, _ in heads], dtype="Int64"),
                "head": pd.array([head for _, head in heads], dtype="Int64"),
                "explained": self.explained.numpy(),
                "ci_low": low.numpy(),
                "ci_high": high.numpy(),
                "random_mean": mean[rows].numpy(),
                "random_low": random_low[rows].numpy(),
                "random_high": random_high[rows].numpy(),
            }
        )


def explained_effect_curve(
    model: Model,
    prompts: Prompts,
    ranking: Any,
    metric: MetricLike | None = None,
    *,
    replacement: str = "corrupt",
    threshold: float = 0.9,
    points: int | str = AUTO,
    draws: int = 10,
    also: Sequence[int] = (),
    signed: bool = False,
    seed: int = 0,
    measure: Callable[..., Tensor] | None = None,
    budget: int | None = None,
    quiet: bool = False,
) -> Curve:
    """Keep the first k heads of a ranking, for growing k, and measure what they explain.

    Args:
        model: what `mechheads.load` returns
        prompts: what `tasks.make` returns; use other prompts than those that ranked the heads
        ranking: HeadEffects, or every head once, as (layer, head) or L9H6, most important first.
            CPR and CMD need effects: of a ranking alone, both are its own areas
        metric: a name in `mechheads.METRICS`, or your own function; default: the task's own
        replacement: what replaces heads not kept: "corrupt", "zero", "mean" or "position_mean"
        threshold: the share of the effect around which every k is measured
        points: at how many k to measure: "auto" for every k up to 64 heads and about 60 of more,
            "all", or a number; more are added where f may first reach the threshold
        draws: number of random rankings to compare with
        also: further head counts to measure
        signed: rank HeadEffects by the signed effect instead of its size
        seed: seed of the random rankings
        measure: used instead of `mechheads.measure_subsets`, with its arguments: for subsets that
            are measured elsewhere
        budget: tokens per pass, which bounds memory; default: chosen for the device
        quiet: show no progress bar

    Returns:
        Curve: f(k) from 0 (no heads) to 1 (all heads). Costs a pass per point, less what nested
        subsets share, and about as many for all random rankings together. MIB's numbers need both
        rankings: the one not drawn is measured at MIB's ten shares alone.

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
    counts = sorted({*curve_points(len(every), points), *also})
    if not 0 <= counts[0] <= counts[-1] <= len(every):
        raise MechheadsError(f"also takes numbers of heads from 0 to {len(every)}, got {also}.")
    random_at = sorted({*random_points(len(every), len(counts), draws), *also})
    rng = random.Random(seed)
    orders = [rng.sample(every, len(every)) for _ in range(draws)]
    shares = mib_counts(len(every))
    masks, others = nested(ranking, layers, heads), rankings[1:] if signed else rankings[:1]

    def measured(keep: Tensor) -> Tensor:
        return (measure or measure_subsets)(
            model, prompts, keep, metric, replacement=replacement, budget=budget, quiet=quiet
        )

    with bar(10, "Curve", quiet) as progress:
        keep = [
            masks[counts],
            *(nested(order, layers, heads)[random_at] for order in orders),
            *(nested(other, layers, heads)[shares] for other in others),
        ]
        with progress.part(9):
            found = measured(torch.cat(keep)).split(
                [len(counts), draws * len(random_at), *[len(shares)] * len(others)]
            )
        values = dict(zip(counts, found[0], strict=True))
        check_gap(model, prompts, values[0], values[len(every)])
        most = 2 * len(counts)
        while len(values) < most and (more := _more(values, threshold)):
            with progress.part(0):
                values |= dict(zip(more, measured(masks[more]), strict=True))
    at = sorted(values)
    own = torch.stack([values[k] for k in at])
    mib = [torch.stack([values[k] for k in shares]), *(part.clone() for part in found[2:])]
    mib = mib if signed else mib[::-1]
    return Curve(
        prompts.task,
        model_name(model),
        metrics.choose(metric, prompts).name,
        tuple(ranking),
        tuple(at),
        own,
        explained(found[1].mean(1).unflatten(0, (draws, len(random_at)))),
        tuple(random_at),
        {"replacement": replacement, "draws": draws, "seed": seed, "threshold": threshold},
        *(mib if rankings else ()),
    )


def _more(values: Mapping[int, Float[Tensor, " prompt"]], threshold: float) -> list[int]:
    """The k to measure next; none if N and its interval are exact."""
    at = sorted(values)
    rows = torch.stack([values[k] for k in at])
    return points_to_add(at, explained(rows.mean(1)), resampled_shares(rows), threshold)


def check_draws(draws: int) -> None:
    """Raise an error if there are too few random rankings for a band."""
    if draws < 2:
        raise MechheadsError(f"--draws takes 2 or more random rankings, got {draws}.")
