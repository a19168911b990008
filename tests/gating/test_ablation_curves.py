"""Curves of what shutting the first heads of an order does."""

from typing import Any

import pytest
import torch
from gate_cases import gates_of, marys, planted_gates, planted_roles
from pairs import random_pairs

from mechheads.errors import MechheadsError
from mechheads.gating.ablation_curves import ablate, grid, masks
from mechheads.scoring.gate_fitting import FitSettings, make_minibatches


def test_ablation_curves_of_planted_heads_have_the_expected_shapes(checkpoint):
    model, prompts = planted_roles(checkpoint("gpt2")), marys()
    found = planted_gates(checkpoint("gpt2"))
    curves = ablate(model, found, prompts, grid(8, 50, None), quiet=True)
    assert curves.ks == tuple(range(9))
    assert curves.note == "4 seeds, 120 updates, batch 4"
    for order in curves.orders:
        assert torch.equal(curves.values[curves.orders.index(order), :, 0], torch.zeros(4))
    assert (curves.mean("facilitation")[1:] < -1).all()
    assert curves.mean("irrelevance")[:7].abs().max() < 1e-4
    assert curves.mean("interference")[1] > 1
    frame: Any = curves.frame()
    assert frame.columns.tolist() == ["order", "k", "delta", "low", "high"]
    assert frame["low"].le(frame["delta"] + 1e-6).all()
    assert frame["high"].ge(frame["delta"] - 1e-6).all()


def test_a_point_of_a_curve_by_hand(tiny):
    prompts = random_pairs(tiny, 1, (8, 8), tokens=2)
    found = gates_of(torch.rand(2, 2, 4), torch.rand(2, 2, 4))
    curves = ablate(tiny, found, prompts, (0, 3), quiet=True)
    course = make_minibatches(tiny, prompts, FitSettings(batch=2))
    base, score = found.plus[1], found.interference[1]
    shut, opened = base.clone().flatten(), base.clone().flatten()
    top = score.flatten().topk(3).indices
    shut[top], opened[top] = 0.0, 1.0
    both = torch.stack([shut, opened]).view(2, 2, 4)
    said = -course.nll(both) * 2
    assert curves.values[2, 1, 1].item() == pytest.approx((said[0] - said[1]).item(), abs=1e-4)


def test_masks_shut_and_open_the_first_heads():
    base = torch.tensor([[0.9, 0.2], [0.6, 0.4]])
    made = masks(base, torch.tensor([[0.1, 0.8], [0.3, 0.9]]), (0, 1, 3), 0)
    assert torch.equal(made[0, 0], base)
    assert torch.equal(made[1, 0], base)
    torch.testing.assert_close(made[0, 1], torch.tensor([[0.9, 0.2], [0.6, 0.0]]))
    torch.testing.assert_close(made[1, 2], torch.tensor([[0.9, 1.0], [1.0, 1.0]]))


def test_ties_are_broken_by_the_seed_and_not_by_the_head():
    base, score = torch.ones(4, 8), torch.zeros(4, 8)
    score[2, 3] = 1.0
    firsts = [masks(base, score, (1, 4), seed)[0] for seed in range(20)]
    assert all((one[0] == 0).nonzero().tolist() == [[2, 3]] for one in firsts)
    shut = torch.stack([one[1] == 0 for one in firsts])
    assert (shut.sum((1, 2)) == 4).all()
    assert shut.any(0).sum() > 16
    assert torch.equal(firsts[0], masks(base, score, (1, 4), 0)[0])


def test_grids_of_k():
    assert grid(32, 50, None) == tuple(range(33))
    assert grid(270, 50, 6) == (0, 10, 20, 30, 40, 50)
    assert grid(4, 50, 6) == (0, 1, 2, 3, 4)
    for wrong, words in (((0, None), "--k takes 1 or more"), ((5, 1), "--points takes 2 or more")):
        with pytest.raises(MechheadsError, match=words):
            grid(32, *wrong)
