"""Intervals and p-values hold their level on skewed effects and on effects that few prompts carry.

The table for the documentation is that of `python -m mechheads.benchmarks.coverage`.
"""

import numpy as np
import pytest
import torch

from mechheads.scoring import statistics
from mechheads.scoring.effects import HeadEffects

SAMPLES = 1500  # a share of 0.95 of them has a standard error of 0.006

POPULATIONS = {
    "normal": lambda rng, size: rng.normal(1, 1, size),
    "exponential": lambda rng, size: rng.exponential(1, size),
    "one in three": lambda rng, size: (rng.random(size) < 1 / 3) * rng.exponential(1, size),
    "one in ten": lambda rng, size: (rng.random(size) < 0.1) * rng.normal(1, 0.3, size),
}
MEANS = {"normal": 1.0, "exponential": 1.0, "one in three": 1 / 3, "one in ten": 0.1}


def samples_of(name, n):
    drawn = POPULATIONS[name](np.random.default_rng(n), (n, SAMPLES))
    return torch.from_numpy(drawn)


def covered(ends, mean):
    return float(((ends[0] <= mean) & (mean <= ends[1])).double().mean())


@pytest.mark.parametrize(
    ("name", "n"),
    [
        *((name, n) for name in ("normal", "exponential") for n in (16, 64)),
        ("one in three", 32),
        ("one in three", 64),
        ("one in ten", 64),
    ],
)
def test_intervals_hold_the_true_effect_as_often_as_they_say(name, n):
    drawn = samples_of(name, n)
    assert covered(statistics.bootstrap(drawn), MEANS[name]) > 0.93
    # The same cannot be said of percentiles of resampled means.
    means = statistics.resample(n).double() @ drawn / n
    if n < 64:
        assert covered(statistics.ends(means), MEANS[name]) < 0.93


@pytest.mark.parametrize("n", [8, 16, 64])
def test_heads_without_a_mean_effect_are_rarely_found(n):
    rng = np.random.default_rng(n)
    acts, size = rng.random((n, SAMPLES)) < 1 / 3, (n, SAMPLES)
    nulls = {
        "cancels": rng.normal(0, 1, size),
        "cancels, heavy tails": rng.standard_t(3, size),
        "cancels where it acts": acts * rng.normal(0, 1, size),
        "skewed": 1 - rng.exponential(1, size),
    }
    for name, null in nulls.items():
        found = float((statistics.uncorrected(torch.from_numpy(null)) < 0.05).double().mean())
        assert found < (0.09 if name == "skewed" else 0.065), name


def effects(values):
    return HeadEffects("t", "m", "patch", "logit_diff", values, values[:, 0, 0], values[:, 0, 0])


def test_few_prompts_or_few_that_carry_an_effect_are_warned_about():
    values = torch.randn(40, 2, 3, generator=torch.Generator().manual_seed(0))
    assert effects(values).warnings == ()
    (few,) = effects(values[:8]).warnings
    assert "8 prompts are few" in few
    assert "Use 16 or more" in few
    values[:, 1, 1] = 0.0  # no effect at all: p is 1, and there is nothing to warn about
    values[4:, 0, 2] = 0.0
    (thin,) = effects(values).warnings
    assert "L0H2" in thin
    assert "L1H1" not in thin
    assert effects(values[:1]).warnings == ()
