"""Gates beside patching: known for planted heads, and by hand."""

import math
from dataclasses import replace

import pytest
import torch
from gate_cases import gates_of, marys, planted_gates, planted_roles

from mechheads.gating.agreement import Agreement, agreement
from mechheads.scoring.activation_patching import patch
from mechheads.scoring.effects import HeadEffects


def test_agreement_with_patching(checkpoint):
    model, prompts = planted_roles(checkpoint("gpt2")), marys()
    found = planted_gates(checkpoint("gpt2"))
    effects = patch(model, prompts, "logprob", replacement="zero", quiet=True)
    agreed = agreement(found, effects)
    assert agreed.significant == 2  # the head that helps, and the one that harms
    assert agreed.correlation > 0
    assert "t = 2.00" in " ".join(Agreement(0.5, 0.1, 3, 2.0, 0.04).table.values())


def test_agreement_by_hand():
    """Significant heads (one helps, one harms): 0.9, 0.7, mean 0.8, variance 0.02; the others: 0.1,
    0.2, 0.3, mean 0.2, variance 0.01. t = 0.6 / sqrt(0.02 / 2 + 0.01 / 3).
    """
    facilitation = torch.tensor([[[0.9, 0.7, 0.1, 0.2, 0.3]]])
    noise = torch.tensor([0.1, -0.1] * 4)[:, None, None]
    effect = torch.tensor([[[5.0, -5.0, 0.0, 0.0, 0.0]]])
    values = effect + noise * torch.tensor([1.0, 1.0, 1.0, 2.0, 3.0])
    blank = torch.zeros(8)
    effects = HeadEffects("t", "m", "patch", "logprob", values, blank, blank)
    agreed = agreement(gates_of(facilitation, facilitation), effects)
    assert agreed.significant == 2
    assert agreed.t == pytest.approx(0.6 / math.sqrt(0.02 / 2 + 0.01 / 3), rel=1e-5)
    assert 0 < agreed.t_p < 0.1
    assert agreed.headline["welch_t"] == agreed.t
    alone = agreement(gates_of(facilitation, facilitation), replace(effects, values=values * 0))
    assert alone.significant == 0
    assert math.isnan(alone.t)
    assert "not defined" in " ".join(alone.table.values())
