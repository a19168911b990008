"""Uncertainty of means over prompts: errors, intervals and corrected p-values.

Few prompts may carry a head's effect, and then neither percentile bootstrap nor t test hold what
they promise. Instead, for every cell (a head, or a head at a position):

1. t = mean / standard error of 2,000 bootstrap samples, with the effects shifted to mean 0: how
   large is t by chance, in data as skewed as these? (Efron's bootstrap-t.)
2. `reach` is the size that 95% of them stay below, and at least that of Student's t.
3. The interval is mean ± reach * standard error (Hall's symmetric interval), clipped to possible
   values where these are known.
4. p is that of a t test with t divided by reach / (reach of Student's t), so that p is below 0.05
   where the interval excludes 0; but at least 2^(1 - m) if m prompts carry the effect, the
   smallest p of a permutation test that flips signs. Then Benjamini and Hochberg.

A share of an effect, such as f(k), is first written as a mean over prompts (`circuits.curve`).
Numbers of heads, such as N(0.9), keep their percentile interval, which is wide enough.

`python -m mechheads.benchmarks.coverage` measures all this against percentile, BCa, t test and
sign-flip permutation: its docstring has the table.
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Float64
from torch import Tensor

from mechheads.heads import in_words

RESAMPLES = 2000
BLOCK = 512  # cells that are resampled at once: this bounds the memory
FLOOR = 0.1  # of the spread of all prompts: bootstrap samples of one value have none
ROUNDING = 1e-5  # of the largest value: float32 adds this much to an effect of 0
LEAST = 16  # prompts, or the level does not hold even where all of them carry the effect
CARRIERS = 8  # of the prompts, or it does not hold for this cell


def standard_error(values: Float[Tensor, "prompt *cell"]) -> Float[Tensor, "*cell"]:
    """Standard error of the mean over prompts; NaN for a single prompt."""
    if len(values) < 2:
        return torch.full(values.shape[1:], torch.nan)
    return values.std(0) / len(values) ** 0.5


def error_from_sums(
    total: Float64[Tensor, "*cell"], squares: Float64[Tensor, "*cell"], n: int
) -> Float32[Tensor, "*cell"]:
    """Standard error of the mean from the sum and the sum of squares over n prompts.

    The sums must be in float64: in float32 their difference cancels where the spread is small.
    """
    if n < 2:
        return torch.full(total.shape, torch.nan)
    variance = (squares - total**2 / n).clamp(min=0) / (n - 1)
    return (variance / n).sqrt().float()


def bootstrap(
    values: Float[Tensor, "prompt *cell"],
    level: float = 0.95,
    seed: int = 0,
    within: tuple[float, float] = (-torch.inf, torch.inf),
) -> tuple[Float[Tensor, "*cell"], Float[Tensor, "*cell"]]:
    """Interval of the mean over prompts (symmetric bootstrap-t); NaN for a single prompt.

    `within` is the range of possible values. If all values are the same, so are both ends: of
    effects that no prompt has shown we only know that at most 3 / n of all prompts have one.

    >>> import torch
    >>> even, uneven = [2.1, 1.9, 2.0, 2.2, 1.8, 2.0, 2.1, 1.9], [1, 1.5, 0.5, 1, 3, 1, 2, 6]
    >>> low, high = bootstrap(torch.tensor([even, uneven]).T)
    >>> [(round(a, 1), round(b, 1)) for a, b in zip(low.tolist(), high.tolist())]
    [(1.9, 2.1), (-1.0, 5.0)]
    """
    flat = values.double().flatten(1)
    half = _reach(flat, level, seed) * standard_error(flat)
    low, high = ((flat.mean(0) + end).clamp(*within).to(values.dtype) for end in (-half, half))
    return low.view(values.shape[1:]), high.view(values.shape[1:])


def _reach(
    values: Float[Tensor, "prompt cell"], level: float = 0.95, seed: int = 0
) -> Float[Tensor, " cell"]:
    """How many standard errors the interval reaches to either side."""
    from scipy.special import stdtrit  # scipy.stats takes a second to import

    n, spread = len(values), values.std(0, correction=0)
    if n < 2:
        return torch.full_like(spread, torch.nan)
    found = torch.full_like(spread, stdtrit(n - 1, (1 + level) / 2))
    weights = resample(n, seed).to(values.dtype).T / n
    rank = round(np.ceil(level * weights.shape[1]))
    for cells in (spread > 0).nonzero().flatten().split(BLOCK):
        centred = (values[:, cells] - values[:, cells].mean(0)).T
        least = FLOOR * spread[cells, None]
        shift = centred @ weights
        deviation = (centred**2 @ weights - shift**2).clamp(min=0).sqrt()
        t = shift.abs() / torch.maximum(deviation, least) * (n - 1) ** 0.5
        found[cells] = torch.maximum(found[cells], t.kthvalue(rank, dim=1).values)
    return found


def student(
    values: Float[Tensor, "sample *cell"], level: float = 0.95
) -> tuple[Float[Tensor, "*cell"], Float[Tensor, "*cell"]]:
    """Interval of the mean of a few values that are means themselves, such as one per seed.

    Student's t: a bootstrap of three values means nothing. NaN for a single value.

    >>> import torch
    >>> low, high = student(torch.tensor([1.0, 2.0, 3.0]))
    >>> round(low.item(), 2), round(high.item(), 2)
    (-0.48, 4.48)
    """
    from scipy.special import stdtrit  # scipy.stats takes a second to import

    reach = float(stdtrit(len(values) - 1, (1 + level) / 2)) if len(values) > 1 else torch.nan
    half = reach * standard_error(values)
    return values.mean(0) - half, values.mean(0) + half


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
    """p-values of a mean of 0, corrected for the number of cells.

    Benjamini and Hochberg: about 5 % of the cells with p below 0.05 are false discoveries. Cells
    whose values are all 0, or not above rounding errors, have p = 1; a single prompt gives NaN.

    >>> import torch
    >>> p_values(torch.tensor([[1.0, 0.0], [1.1, 0.0], [0.9, 0.0], [1.0, 0.0]]))  # n is 4
    tensor([0.2500, 1.0000])
    """
    if len(values) < 2:
        return torch.full(values.shape[1:], torch.nan)
    raw = uncorrected(values).flatten().numpy()
    order = np.argsort(raw)[::-1]
    scaled = raw[order] * len(raw) / np.arange(len(raw), 0, -1)
    corrected = np.empty_like(raw)
    corrected[order] = np.minimum.accumulate(scaled).clip(0, 1)
    return torch.from_numpy(corrected).float().view(values.shape[1:])


def uncorrected(values: Float[Tensor, "prompt *cell"]) -> Float[Tensor, "*cell"]:
    """The p-values of two or more prompts before they are corrected, as float64."""
    from scipy.special import stdtr, stdtrit

    n, flat = len(values), values.double().flatten(1)
    wider = _reach(flat) / stdtrit(n - 1, 0.975)
    t = (flat.mean(0) / (standard_error(flat) * wider)).nan_to_num(nan=0.0)
    tested = torch.from_numpy(2 * stdtr(n - 1, -t.abs().numpy()))
    least = 2.0 ** (1 - carriers(flat))
    return torch.maximum(tested, least).clamp(max=1).view(values.shape[1:])


def carriers(values: Float[Tensor, "prompt *cell"]) -> Float[Tensor, "*cell"]:
    """How many prompts carry each effect: theirs is above the rounding errors of the table."""
    if not values.numel():
        return torch.zeros(values.shape[1:], dtype=values.dtype)
    return (values.abs() > ROUNDING * values.abs().max()).to(values.dtype).sum(0)


def thin(values: Float[Tensor, "prompt *cell"]) -> Bool[Tensor, "*cell"]:
    """Whether too few prompts carry an effect, but some do: its interval may be too narrow."""
    found = carriers(values)
    return (found > 0) & (found < CARRIERS)


def cautions(n: int, thin: Sequence[str] = ()) -> tuple[str, ...]:
    """What to say about intervals and p-values from n prompts; `thin` are names of effects."""
    if n < LEAST:
        return (
            f"{n} prompts are few: where effects differ much between prompts, 95% intervals hold "
            f"the true effect less often than that, and p-values are too small. Use {LEAST} or "
            "more.",
        )
    if not thin:
        return ()
    return (
        f"Fewer than {CARRIERS} of the {n} prompts show any effect of {in_words(thin, 6)}: the "
        "intervals there may be too narrow. Use more prompts if these matter.",
    )


def wilson(correct: int, n: int) -> tuple[float, float]:
    """95% Wilson interval of the share of correct ones out of n."""
    from scipy import stats

    found = stats.binomtest(correct, n).proportion_ci(method="wilson")
    return float(found.low), float(found.high)
