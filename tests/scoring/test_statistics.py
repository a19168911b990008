"""Errors, intervals and p-values against scipy and by hand."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from mechheads.scoring import statistics
from mechheads.scoring.effects import HeadEffects


@pytest.fixture(scope="module")
def values():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(40, 3, 2, generator=generator) + torch.tensor([[0.0, 2.0]])


def test_standard_errors_are_scipy_s(values):
    wanted = stats.sem(values.numpy(), axis=0)
    np.testing.assert_allclose(statistics.standard_error(values).numpy(), wanted, rtol=1e-5)
    for shift in (0.0, 1e4):  # large means, small spread: nothing may cancel
        shifted = values.double() + shift
        total, squares = shifted.sum(0), shifted.pow(2).sum(0)
        summed = statistics.error_from_sums(total, squares, len(values))
        np.testing.assert_allclose(summed.numpy(), wanted, rtol=1e-5)


def test_intervals_are_those_of_a_plain_loop_over_resamples(values):
    skewed = values.exp()
    low, high = statistics.bootstrap(skewed)
    rng = np.random.default_rng(5)
    for cell in np.ndindex(3, 2):
        one = skewed[(slice(None), *cell)].double().numpy()
        drawn = one[rng.integers(0, 40, (20000, 40))]
        t = (drawn.mean(1) - one.mean()) / stats.sem(drawn, axis=1)
        reach = max(np.quantile(abs(t), 0.95), stats.t.ppf(0.975, 39)) * stats.sem(one)
        assert float(high[cell] - low[cell]) / 2 == pytest.approx(reach, rel=0.06)
        assert float(high[cell] + low[cell]) / 2 == pytest.approx(one.mean(), rel=1e-5)


def test_p_is_below_0_05_where_the_interval_excludes_0(values):
    shifted = torch.cat([values.exp() - 1 - step for step in torch.linspace(0, 1.5, 40)], dim=2)
    low, high = statistics.bootstrap(shifted)
    outside = (low > 0) | (high < 0)
    assert 40 < outside.sum() < 200
    assert torch.equal(statistics.uncorrected(shifted) < 0.05, outside)


def test_p_values_are_corrected_for_the_number_of_heads(values):
    raw = statistics.uncorrected(values).flatten().numpy()
    found = statistics.p_values(values).flatten().numpy()
    np.testing.assert_allclose(found, stats.false_discovery_control(raw), rtol=1e-4)
    assert (found.reshape(3, 2)[:, 1] < 1e-3).all()
    tested: Any = stats.ttest_1samp(values.numpy().reshape(40, -1), 0)
    assert (raw >= tested.pvalue * 0.999).all()


def test_no_p_is_smaller_than_flipping_all_signs_allows():
    same = torch.full((5, 1), 0.3)
    rare = torch.zeros(40, 1)
    rare[[3, 8, 9]] = torch.tensor([[1.0], [1.1], [0.9]])
    assert statistics.uncorrected(same).item() == pytest.approx(2 / 2**5)
    assert statistics.uncorrected(rare).item() >= 2 / 2**3


def test_rounding_errors_are_no_effect(values):
    noise = torch.full((40, 1, 2), -2.8e-8)
    p = statistics.p_values(torch.cat([values, noise], dim=1))
    assert (p[-1] == 1).all()
    assert (p[:-1, 1] < 1e-3).all()


def test_the_same_ends_come_out_for_any_number_of_heads(values):
    low, high = statistics.bootstrap(values)
    many = values.repeat(1, 300, 1)  # more than are resampled at once
    for once, again in zip((low, high), statistics.bootstrap(many), strict=True):
        torch.testing.assert_close(once, again[-3:])
    for end in statistics.bootstrap(values, within=(0.0, 1.0)):
        assert 0 <= float(end.min()) <= float(end.max()) <= 1


def test_heads_without_any_effect_have_p_one(values):
    silent = values.clone()
    silent[:, 0, 0] = 0.0
    assert statistics.p_values(silent)[0, 0] == 1.0
    assert not statistics.p_values(silent).isnan().any()


def test_a_single_prompt_has_no_error_and_no_p_value():
    one = torch.ones(1, 2, 2)
    assert statistics.standard_error(one).isnan().all()
    assert statistics.p_values(one).isnan().all()
    assert all(end.isnan().all() for end in statistics.bootstrap(one))


def test_effects_become_a_frame_and_a_ranking(values):
    effects = HeadEffects("t", "m", "patch", "logit_diff", values, values[:, 0, 0], values[:, 0, 1])
    frame = effects.frame()
    for row in frame.to_dict("records"):
        mean = float(values[:, row["layer"], row["head"]].mean())
        assert row["effect"] == pytest.approx(mean, rel=1e-5)
        assert row["ci_low"] < row["effect"] < row["ci_high"]
    sizes = [abs(float(effects.scores[cell])) for cell in effects.ranking()]
    assert sizes == sorted(sizes, reverse=True)
    signed = [float(effects.scores[cell]) for cell in effects.ranking(signed=True)]
    assert signed == sorted(signed, reverse=True)
    top = effects.top(2)
    layer, head = effects.ranking()[0]
    assert top.name[0] == f"L{layer}H{head}"
    assert len(top) == 2


def test_effects_are_imported_without_scipy_stats():
    code = "import sys, mechheads.scoring.effects; sys.exit('scipy.stats' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
