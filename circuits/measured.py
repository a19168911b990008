"""f, the share of an effect that is explained: from the metric of every prompt at every point.

f = (m(some kept) - m(none kept)) / (m(all kept) - m(none kept)), m the metric's mean over prompts.
Curves of heads and of edges, and the tests of a circuit, share these functions.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.errors import MechheadsError
from mechheads.models.model import Model, model_name
from mechheads.prompts import Prompts
from mechheads.runs.result import Result
from mechheads.scoring.statistics import bootstrap, resample, standard_error

from .points import SHARES, TOLERANCE

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
        return resampled_shares(self.values, seed)

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


def resampled_shares(
    values: Float[Tensor, "point prompt"], seed: int = 0
) -> Float[Tensor, "draw point"]:
    """f of bootstrap samples of the prompts."""
    n = values.shape[1]
    return explained((resample(n, seed) @ values.T) / n)


def needed(
    curves: Float[Tensor, "draw point"],
    threshold: float,
    at: Sequence[int] | None = None,
    *,
    stays: bool = False,
) -> Float[Tensor, " draw"]:
    """For each curve, the smallest k that reaches the threshold, or from which it stays there.

    `at` are the k of the points; default: every k. The last k if none reaches it; NaN if the curve
    is not finite.
    """
    above = curves >= threshold - TOLERANCE
    above[:, -1] = True
    if stays:
        above = above.flip(1).cummin(1).values.flip(1)
    found = above.float().argmax(1)
    found = found.float() if at is None else torch.tensor(at, dtype=torch.float)[found]
    return found.where(curves.isfinite().all(1), torch.nan)


def mib_area(at_shares: Float[Tensor, " share"]) -> float:
    """Trapezoid rule over MIB's shares of the heads."""
    return float(torch.trapezoid(at_shares, torch.tensor(SHARES)))
