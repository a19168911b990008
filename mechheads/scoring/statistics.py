"""Uncertainty of means over prompts: errors, bootstrap intervals and corrected p-values."""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

RESAMPLES = 2000


def standard_error(values: Float[Tensor, "prompt *cell"]) -> Float[Tensor, "*cell"]:
    """Standard error of the mean over prompts; NaN for a single prompt."""
    if len(values) < 2:
        return torch.full(values.shape[1:], torch.nan)
    return values.std(0) / len(values) ** 0.5


def error_from_sums(
    total: Float[Tensor, "*cell"], squares: Float[Tensor, "*cell"], n: int
) -> Float[Tensor, "*cell"]:
    """Standard error of the mean from the sum and the sum of squares over n prompts."""
    if n < 2:
        return torch.full(total.shape, torch.nan)
    variance = (squares - total**2 / n).clamp(min=0) / (n - 1)
    return (variance / n).sqrt()


def bootstrap(
    values: Float[Tensor, "prompt *cell"], level: float = 0.95, seed: int = 0
) -> tuple[Float[Tensor, "*cell"], Float[Tensor, "*cell"]]:
    """Percentile bootstrap interval of the mean over prompts; cells are resampled together."""
    weights = resample(len(values), seed).to(values.dtype) / len(values)
    low, high = ends(weights @ values.flatten(1), level)
    return low.view(values.shape[1:]), high.view(values.shape[1:])


def ends(
    draws: Float[Tensor, "draw *cell"], level: float = 0.95
) -> tuple[Float[Tensor, "*cell"], Float[Tensor, "*cell"]]:
    """The ends of the interval that holds the middle share `level` of the draws, without NaNs."""
    shares = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=draws.dtype)
    low, high = torch.nanquantile(draws, shares, dim=0)
    return low, high


def resample(n: int, seed: int = 0, times: int = RESAMPLES) -> Float[Tensor, "time prompt"]:
    """How often each of n prompts is drawn, in each of `times` resamples with replacement."""
    counts = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=times)
    return torch.from_numpy(counts).float()


def p_values(values: Float[Tensor, "prompt *cell"]) -> Float[Tensor, "*cell"]:
    """p-values of a t test of the mean against 0, corrected for the number of cells.

    Benjamini and Hochberg: about 5 % of the cells with p below 0.05 are false discoveries. Cells
    whose values are all 0 have p = 1.
    """
    if len(values) < 2:
        return torch.full(values.shape[1:], torch.nan)
    from scipy.special import stdtr  # scipy.stats takes a second to import

    n, flat = len(values), values.double().flatten(1).numpy()
    with np.errstate(divide="ignore", invalid="ignore"):
        t = flat.mean(0) / (flat.std(0, ddof=1) / n**0.5)
    raw = np.where(np.isnan(t), 1.0, 2 * stdtr(n - 1, -np.abs(t)))
    order = np.argsort(raw)[::-1]
    scaled = raw[order] * len(raw) / np.arange(len(raw), 0, -1)
    corrected = np.empty_like(raw)
    corrected[order] = np.minimum.accumulate(scaled).clip(0, 1)
    return torch.from_numpy(corrected).float().view(values.shape[1:])


def wilson(correct: int, n: int) -> tuple[float, float]:
    """95 % Wilson interval of the share of correct ones out of n."""
    from scipy import stats

    found = stats.binomtest(correct, n).proportion_ci(method="wilson")
    return float(found.low), float(found.high)
