"""Do intervals and p-values hold their level? `python -m mechheads.benchmarks.coverage`.

1. The patching effects of every head on 500 prompts of three tasks are a population, and so are
   made-up ones of known shapes.
2. 200 samples of n prompts are drawn from it. How many 95% intervals hold the population's mean?
3. The same with the effect shifted to a mean of 0 on the prompts that have one: in how many samples
   is p below 0.05? (Prompts without an effect keep 0. Had they been shifted too, every sample that
   misses the rare prompts would be a constant, and no test could hold its level.)

Means over heads, by the share of prompts on which a head has an effect (half or more; 5% to half;
below 5%). Width: of our interval, as a multiple of the t interval's (median over heads). Warned:
how often we say that the level may not hold, or see no effect at all.

          effect on     n  intervals that hold the mean    p < 0.05 without a mean effect
                        percentile   BCa     t  ours  width  t test  sign flips   ours      warned
mini      half or more   4    0.78     0.77  0.94  0.98   2.16    0.061      0.000    0.000    100%
mini      half or more   8    0.86     0.85  0.93  0.95   1.15    0.067      0.069    0.046    100%
mini      half or more  16    0.90     0.89  0.93  0.95   1.05    0.065      0.067    0.054      0%
mini      half or more  32    0.92     0.92  0.94  0.95   1.02    0.059      0.061    0.050      0%
mini      half or more  64    0.93     0.93  0.94  0.95   1.01    0.059      0.061    0.053      0%
sparse    half or more   4    0.72     0.71  0.89  0.95   2.18    0.069      0.000    0.000    100%
sparse    5% to half     4    0.28     0.27  0.43  0.49   2.84    0.003      0.000    0.000    100%
sparse    below 5%       4    0.04     0.04  0.05  0.05      -    0.000      0.000    0.000    100%
sparse    half or more   8    0.82     0.81  0.90  0.93   1.22    0.092      0.087    0.050    100%
sparse    5% to half     8    0.42     0.41  0.58  0.67   3.35    0.041      0.009    0.003    100%
sparse    below 5%       8    0.08     0.08  0.10  0.10      -    0.000      0.000    0.000    100%
sparse    half or more  16    0.87     0.85  0.91  0.93   1.11    0.089      0.097    0.074      1%
sparse    5% to half    16    0.58     0.56  0.70  0.80   3.81    0.077      0.079    0.037     88%
sparse    below 5%      16    0.13     0.13  0.17  0.17      -    0.000      0.000    0.000    100%
sparse    half or more  32    0.90     0.89  0.93  0.94   1.07    0.074      0.079    0.060      0%
sparse    5% to half    32    0.75     0.71  0.85  0.92   2.41    0.055      0.113    0.026     49%
sparse    below 5%      32    0.25     0.24  0.29  0.29      -    0.000      0.000    0.000    100%
sparse    half or more  64    0.93     0.92  0.94  0.95   1.02    0.059      0.063    0.049      0%
sparse    5% to half    64    0.82     0.77  0.89  0.96   1.70    0.068      0.110    0.021     20%
sparse    below 5%      64    0.37     0.37  0.42  0.48   4.71    0.000      0.000    0.000    100%
exp.      half or more   4    0.75     0.76  0.88  0.95   2.55    0.119      0.000    0.000    100%
exp.      half or more  16    0.89     0.90  0.92  0.94   1.14    0.083      0.081    0.064      0%
exp.      half or more  64    0.93     0.93  0.93  0.94   1.04    0.067      0.067    0.058      0%
lognorm.  half or more   4    0.68     0.69  0.81  0.93   2.70    0.187      0.000    0.000    100%
lognorm.  half or more  16    0.83     0.85  0.85  0.89   1.29    0.149      0.148    0.110      0%
lognorm.  half or more  64    0.90     0.91  0.90  0.92   1.16    0.096      0.098    0.079      0%
30% exp.  5% to half     4    0.58     0.58  0.64  0.72   3.19    0.000      0.000    0.000    100%
30% exp.  5% to half    16    0.83     0.87  0.84  0.96   1.98    0.053      0.027    0.024     91%
30% exp.  5% to half    64    0.91     0.93  0.91  0.95   1.19    0.080      0.083    0.073      0%

In every row ours holds the mean at least as often as the others and rejects no more often. Where
heads act on many prompts it holds its level from about 16 prompts on (of lognormal effects from
more than 64); on the two models it is then 1 to 11% wider than the t interval. Where they act on
5% to half, it takes 32 to 64 prompts. Below 5% nothing can hold it: most samples have no prompt
on which the head acts, and we then say that the effect is 0 and p is 1. Sign flips are exact if
effects are as often positive as negative; if they are skewed, they reject as often as the t test.

f(k) is a ratio of two means, and our interval that of its linearisation:

intervals that hold f(k), mean over k (100 samples), and N(0.9)
                            n percentile   ours   N(0.9)
mini         ioi             8       0.88   0.98     0.95
mini         ioi            16       0.91   0.96     1.00
mini         ioi            32       0.93   0.95     1.00
mini         ioi            64       0.93   0.94     1.00
mini         greater_than    8       0.83   0.90     0.91
mini         greater_than   16       0.90   0.93     0.96
mini         greater_than   32       0.92   0.95     0.98
mini         greater_than   64       0.92   0.93     0.97
mini         docstring       8       0.84   0.94     0.90
mini         docstring      16       0.89   0.93     0.94
mini         docstring      32       0.94   0.96     0.98
mini         docstring      64       0.94   0.96     0.98
mini-sparse  ioi             8       0.78   0.90     0.96
mini-sparse  ioi            16       0.84   0.94     0.98
mini-sparse  ioi            32       0.89   0.94     0.99
mini-sparse  ioi            64       0.91   0.95     0.99
mini-sparse  greater_than    8       0.92   0.95     1.00
mini-sparse  greater_than   16       0.94   0.95     1.00
mini-sparse  greater_than   32       0.95   0.96     1.00
mini-sparse  greater_than   64       0.97   0.97     1.00
mini-sparse  docstring       8       0.90   0.96     0.99
mini-sparse  docstring      16       0.95   0.97     1.00
mini-sparse  docstring      32       0.95   0.97     1.00
mini-sparse  docstring      64       0.96   0.98     1.00

Percentile intervals of N(0.9), which are whole numbers, are wide enough as they are.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

import circuits
import mechheads
import tasks
from mechheads.scoring import statistics

PROMPTS, SAMPLES = 500, 200
SIZES = (4, 8, 16, 32, 64)
MODELS, TASKS = ("mini", "mini-sparse"), ("ioi", "greater_than", "docstring")
# By the share of the prompts on which a head has an effect.
GROUPS = {"half or more": (0.5, 1.01), "5% to half": (0.05, 0.5), "below 5%": (0.0, 0.05)}

Values = Float[Tensor, "prompt cell"]
Ends = tuple[Float[Tensor, " cell"], Float[Tensor, " cell"]]


def student(values: Values) -> Ends:
    """mean ± t * standard error."""
    from scipy.special import stdtrit

    half = stdtrit(len(values) - 1, 0.975) * statistics.standard_error(values)
    return values.mean(0) - half, values.mean(0) + half


def percentile(values: Values) -> Ends:
    """The middle 95% of bootstrap means."""
    weights = statistics.resample(len(values)).to(values.dtype) / len(values)
    return statistics.ends(weights @ values)


def bca(values: Values) -> Ends:
    """Percentile interval, corrected for bias and acceleration (Efron 1987)."""
    from scipy.special import ndtr, ndtri

    weights = statistics.resample(len(values)).to(values.dtype) / len(values)
    centred = values - values.mean(0)
    draws = (weights @ centred).sort(0).values
    last = len(draws) - 1
    below = ((draws < 0).double().mean(0) + (draws <= 0).double().mean(0)) / 2
    bias = ndtri(below.clamp(1 / last, 1 - 1 / last).numpy())
    size = (centred**2).sum(0) ** 1.5
    pull = ((centred**3).sum(0) / size.where(size > 0, 1) / 6).numpy()
    found = []
    for z in (-1.959964, 1.959964):
        share = ndtr(bias + (bias + z) / (1 - pull * (bias + z)))
        at = torch.from_numpy((share * last).round().astype(int))
        found.append(values.mean(0) + draws.gather(0, at[None])[0])
    return found[0], found[1]


def t_test(values: Values) -> Float[Tensor, " cell"]:
    """p of Student's t test."""
    from scipy.special import stdtr

    t = (values.mean(0) / statistics.standard_error(values)).nan_to_num(nan=0.0)
    return torch.from_numpy(2 * stdtr(len(values) - 1, -t.abs().numpy()))


def sign_flips(values: Values) -> Float[Tensor, " cell"]:
    """p of the permutation test that flips signs: all flips up to n = 12, else 4,096 of them."""
    n = len(values)
    if n <= 12:
        flips = [(1.0, *rest) for rest in itertools.product((1.0, -1.0), repeat=n - 1)]
        signs = torch.tensor(flips, dtype=values.dtype)
    else:
        drawn = np.random.default_rng(0).integers(0, 2, (4096, n))
        drawn[0] = 1
        signs = torch.from_numpy(2.0 * drawn - 1)
    total = values.sum(0).abs() * (1 - 1e-9)
    return ((signs @ values).abs() >= total).double().mean(0)


INTERVALS: dict[str, Callable[[Values], Ends]] = {
    "percentile": percentile,
    "BCa": bca,
    "t": student,
    "ours": statistics.bootstrap,
}
TESTS: dict[str, Callable[[Values], Tensor]] = {
    "t test": t_test,
    "sign flips": sign_flips,
    "ours": statistics.uncorrected,
}


def measure(population: Values, n: int, samples: int) -> dict[str, Tensor]:
    """Per head: coverage, width, rejections of a true null, and how often we warn.

    The null: the same prompts, with the effect shifted to mean 0 where there is one; prompts
    without an effect keep 0.
    """
    rows = np.random.default_rng(n).integers(0, len(population), (n, samples))
    acts = population != 0
    null = population - acts * population.sum(0) / acts.sum(0).clamp(min=1)
    sampled, nulls = population[rows], null[rows].flatten(1)  # n, sample, head
    mean, found = population.mean(0), {}
    slack = 1e-9 * mean.abs()
    for name, interval in INTERVALS.items():
        low, high = (end.view(samples, -1) for end in interval(sampled.flatten(1)))
        found[f"{name} "] = ((low <= mean + slack) & (mean - slack <= high)).double().mean(0)
        found[f"width {name}"] = (high - low).median(0).values
    for name, test in TESTS.items():
        found[f"p {name}"] = (test(nulls).view(samples, -1) < 0.05).double().mean(0)
    few = (sampled != 0).sum(0) < statistics.CARRIERS
    found["warned"] = (few | (n < statistics.LEAST)).double().mean(0)
    return found


def effects_of(model: str, task: str) -> Values:
    """Patch effects of every head that has any; rounding errors count as 0."""
    loaded = mechheads.load(model)
    prompts = tasks.make(task, loaded, n=PROMPTS)
    values = mechheads.score_heads(loaded, prompts, "patch", quiet=True).values.flatten(1).double()
    values[values.abs() <= statistics.ROUNDING * values.abs().max()] = 0
    return values[:, (values != 0).any(0)]


def synthetic() -> dict[str, Values]:
    """Populations of a known shape, 16 each."""
    rng, size = np.random.default_rng(0), (PROMPTS, 16)
    drawn = {
        "normal": rng.normal(0.5, 1, size),
        "exponential": rng.exponential(1, size),
        "lognormal": rng.lognormal(0, 1, size),
        "30% exponential": (rng.random(size) < 0.3) * rng.exponential(1, size),
        "10% normal": (rng.random(size) < 0.1) * rng.normal(1, 0.3, size),
    }
    return {name: torch.from_numpy(values) for name, values in drawn.items()}


def rows(where: str, parts: list[Values], samples: int = SAMPLES) -> Iterator[str]:
    """A line per sample size and group of heads."""
    shares = torch.cat([(part != 0).double().mean(0) for part in parts])
    for n in SIZES:
        measured = [measure(part, n, samples) for part in parts]
        found = {name: torch.cat([one[name] for one in measured]) for name in measured[0]}
        wider = found["width ours"] / found["width t"]
        for group, (low, high) in GROUPS.items():
            chosen = (low <= shares) & (shares < high)
            if chosen.any():
                means = {name: float(values[chosen].mean()) for name, values in found.items()}
                covered = " ".join(f"{means[f'{name} ']:.2f}".rjust(10) for name in INTERVALS)
                rejected = " ".join(f"{means[f'p {name}']:.3f}".rjust(10) for name in TESTS)
                width = f"{float(wider[chosen].nanmedian()):6.2f}"
                yield (
                    f"{where:17}{group:13}{int(chosen.sum()):5}{n:5} {covered} {width} {rejected} "
                    f"{means['warned']:7.0%}"
                )


def curve_rows(model: str, task: str, samples: int = 100) -> Iterator[str]:
    """How often intervals of f(k), over all k, and of N(0.9) hold their values."""
    loaded = mechheads.load(model)
    prompts = tasks.make(task, loaded, n=PROMPTS)
    ranking = mechheads.score_heads(loaded, prompts, "attribution", quiet=True).ranking()
    whole = circuits.explained_effect_curve(loaded, prompts, ranking, draws=2, quiet=True)
    for n in SIZES[1:]:
        rows = np.random.default_rng(n).integers(0, PROMPTS, (samples, n))
        held = []
        for row in rows:
            curve = replace(whole, values=whole.values[:, row])
            shares = statistics.ends(curve.resampled()), curve.interval()
            counts = curve.needed_interval()
            f, needed = whole.explained[1:-1], whole.needed()
            held.append(
                [float(((a[1:-1] <= f) & (f <= b[1:-1])).float().mean()) for a, b in shares]
                + [float(counts[0] <= needed <= counts[1])]
            )
        percentile, ours, count = np.mean(held, 0)
        yield f"{model:12} {task:13} {n:3} {percentile:10.2f} {ours:6.2f} {count:8.2f}"


def main() -> None:
    """Print both tables; takes about ten minutes."""
    titles = [*(name.rjust(10) for name in INTERVALS), " width", *(n.rjust(10) for n in TESTS)]
    print(f"{'':17}{'':13}heads    n {' '.join(titles)}  warned")
    populations = {m: [effects_of(m, t) for t in TASKS] for m in MODELS}
    populations |= {name: [values] for name, values in synthetic().items()}
    for where, parts in populations.items():
        for row in rows(where, parts):
            print(row, flush=True)
    print(f"\n{'':12} {'':13}   n percentile   ours   N(0.9)")
    for model, task in itertools.product(MODELS, TASKS):
        for row in curve_rows(model, task):
            print(row, flush=True)


if __name__ == "__main__":
    main()
