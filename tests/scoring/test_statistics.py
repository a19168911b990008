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
    total, squares = values.sum(0), values.pow(2).sum(0)
    summed = statistics.error_from_sums(total, squares, len(values))
    np.testing.assert_allclose(summed.numpy(), wanted, rtol=1e-3)


def test_intervals_are_near_scipy_s_bootstrap(values):
    low, high = statistics.bootstrap(values)
    wanted = stats.bootstrap(
        (values.numpy(),), np.mean, axis=0, method="percentile", rng=np.random.default_rng(1)
    ).confidence_interval
    np.testing.assert_allclose(low.numpy(), wanted.low, atol=0.06)
    np.testing.assert_allclose(high.numpy(), wanted.high, atol=0.06)


def test_p_values_are_corrected_for_the_number_of_heads(values):
    tested: Any = stats.ttest_1samp(values.numpy().reshape(40, -1), 0)
    raw = tested.pvalue
    order = np.argsort(raw)
    ranked = raw[order] * len(raw) / np.arange(1, len(raw) + 1)
    wanted = np.empty_like(raw)
    wanted[order] = np.minimum.accumulate(ranked[::-1])[::-1]
    found = statistics.p_values(values).flatten().numpy()
    np.testing.assert_allclose(found, np.minimum(wanted, 1), rtol=1e-4)
    assert (found.reshape(3, 2)[:, 1] < 1e-3).all()


def test_heads_without_any_effect_have_p_one(values):
    silent = values.clone()
    silent[:, 0, 0] = 0.0
    assert statistics.p_values(silent)[0, 0] == 1.0
    assert not statistics.p_values(silent).isnan().any()


def test_a_single_prompt_has_no_error_and_no_p_value():
    one = torch.ones(1, 2, 2)
    assert statistics.standard_error(one).isnan().all()
    assert statistics.p_values(one).isnan().all()


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
