"""What the methods find on the models whose heads are known: the facts of the documentation."""

import pytest
import torch

from mechheads.benchmarks.known import (
    WAYS,
    judge_methods,
    known_models,
    print_findings,
    strong_heads,
)
from mechheads.cli.console import print_plain
from mechheads.scoring.ablation import ablate
from mechheads.scoring.effects import HeadEffects


@pytest.fixture(scope="module")
def truths():
    return {truth.name.removeprefix("known/"): truth for truth in known_models(n=8)}


@pytest.fixture(scope="module")
def cells(truths):
    quick = [way for way in WAYS if way.method not in ("gating", "hybrid")]
    found = judge_methods(list(truths.values()), quick)
    return {(v.way, v.model.removeprefix("known/")): v.cell for v in found}


def test_every_scoring_method_finds_the_induction_head_and_the_one_that_opposes(cells):
    for way in ("patch", "patch, zero", "attribution", "ig", "atp", "gim"):
        assert cells[way, "induction"] == "all"


def test_plain_gradients_see_nothing_before_a_saturated_softmax(cells):
    assert cells["patch", "saturated"] == cells["atp", "saturated"] == "all"
    assert cells["attribution", "saturated"] == cells["gim", "saturated"] == "not L0H1"


def test_a_head_with_a_constant_output_needs_zero_or_the_mean(cells):
    for way in ("patch", "patch, position_mean", "attribution", "ig", "atp"):
        assert cells[way, "constant"] == "not L0H1"
    assert cells["patch, zero", "constant"] == cells["patch, mean", "constant"] == "all"


def test_either_of_two_copies_is_enough_unless_one_is_restored(cells, truths):
    assert cells["patch", "redundant"] == cells["patch, zero", "redundant"] == "not L0H0, L0H2"
    assert cells["patch, denoising", "redundant"] == cells["atp", "redundant"] == "all"
    truth = truths["redundant"]
    both = ablate(truth.model, truth.prompts, "L0H0,L0H2", quiet=True).headline
    one = ablate(truth.model, truth.prompts, "L0H0", quiet=True).headline
    assert both["change"] < -5 < -0.1 < one["change"]


def test_a_backup_hides_the_name_mover_from_zero_ablation_and_itself_from_all(cells):
    assert cells["patch, zero", "ioi"] == "not L2H0, L3H2"
    assert all("L3H2" in cell or way.startswith(("ensemble", "path", "direct"))
               for (way, model), cell in cells.items() if model == "ioi")  # fmt: skip


def test_what_the_flip_leaves_alone_is_not_patched(cells):
    # The duplicate token is at the same place in both prompts.
    assert cells["patch", "ioi"] == "not L0H0, L3H2"
    assert cells["patch, mean", "ioi"] == "not L3H2"


def test_direct_attribution_sees_only_heads_that_write_to_the_logits(cells):
    assert cells["direct", "induction"] == "not L0H0"
    assert cells["direct", "ioi"] == "not L0H0, L1H1, L3H2"


def test_weak_heads_are_not_found():
    scores, one = torch.tensor([[[10.0, -1.0, 0.4, 0.0]]]), torch.ones(1)
    effects = HeadEffects("task", "model", "patch", "logit_diff", scores, one, one)
    assert strong_heads(effects, 3) == [(0, 0), (0, 1)]
    assert strong_heads(effects, 1) == [(0, 0)]


def test_the_table_names_the_roles_and_what_is_missed(capsys, truths):
    models = [truths["redundant"]]
    print_findings(models, judge_methods(models, WAYS[:1]), print_plain)
    shown = capsys.readouterr().out
    assert "known/redundant" in shown
    assert "not L0H0, L0H2" in shown
    assert "second copy" in shown
