"""Ensembles: mean ranks, and how their names are written."""

import pytest
import torch
from pairs import random_pairs
from scipy.stats import rankdata

from mechheads.errors import MechheadsError
from mechheads.scoring.ensemble import mean_rank
from mechheads.scoring.registry import find, score_heads
from mechheads.sweeping.grid import Cell


def test_its_scores_are_the_mean_ranks_of_its_members(tiny):
    prompts = random_pairs(tiny, 3)
    members = [score_heads(tiny, prompts, name).scores for name in ("patch", "direct")]
    ranks = [rankdata(scores.abs().flatten(), "min") - 1 for scores in members]
    wanted = torch.tensor(sum(ranks) / 2 / (len(ranks[0]) - 1))
    found = score_heads(tiny, prompts, "ensemble:patch,direct", quiet=True)
    torch.testing.assert_close(found.scores.abs().flatten().double(), wanted)
    agree = members[0].sign() == members[1].sign()
    assert (found.scores.sign() == members[0].sign())[agree & (found.scores != 0)].all()
    assert found.method == "ensemble:patch,direct"
    assert found.single
    same = score_heads(tiny, prompts, "ensemble", members="patch,direct", quiet=True)
    assert torch.equal(same.values, found.values)


def test_heads_that_no_method_sees_share_the_lowest_rank_whatever_the_rounding():
    scores = torch.tensor([[[5.0, 1e-8, -2e-8, 0.0]], [[-1.0, 0.0, 0.0, 0.5]]])
    assert mean_rank(scores).tolist() == [[1.0, 0.0, 0.0, pytest.approx(1 / 3)]]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ensemble:patch", "two or more different methods"),
        ("ensemble:patch,patch", "two or more different methods"),
        ("ensemble:patch,iig", "Unknown method in an ensemble: 'iig'. Did you mean 'ig'"),
        ("ensemble:patch,ensemble", "Unknown method in an ensemble"),
        ("patch:ig", "The method patch takes nothing after a colon"),
        ("ensembel:patch,ig", "Did you mean"),
    ],
)
def test_a_wrong_name_says_what_is_wanted(name, words):
    with pytest.raises(MechheadsError, match=words):
        find(name)


def test_a_sweep_lists_ensembles_with_plus_signs():
    cell = Cell("discover", (("task", "ioi"), ("method", "ensemble:patch+ig")))
    assert cell.name.startswith("discover-ioi-ensemble_patch_ig-")
    assert find("ensemble:patch+ig").options.keys() == {"direction", "budget", "quiet"}
