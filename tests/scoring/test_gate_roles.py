"""What fitted gates say: scores, roles, saved results, fits that have not ended."""

import pytest
import torch
from gate_cases import HARMS, HELPS, gates_of, marys, planted_gates, planted_roles

from mechheads.scoring.gate_fitting import FitSettings, make_minibatches
from mechheads.scoring.gate_roles import LIMIT, Gates, unfinished


def test_planted_heads_get_their_roles_with_every_seed(checkpoint):
    model, prompts = planted_roles(checkpoint("gpt2")), marys()
    found = planted_gates(checkpoint("gpt2"))
    for layer in range(model.cfg.n_layers):
        for head in range(model.cfg.n_heads):
            role = {HELPS: "facilitation", HARMS: "interference"}.get((layer, head), "irrelevance")
            for name in ("facilitation", "irrelevance", "interference"):
                assert found.has(name)[:, layer, head].all() == (name == role)
                assert found.has(name)[:, layer, head].any() == (name == role)
    table = found.role_frame().set_index("role")
    assert table.loc["facilitating", "always"] == table.loc["facilitating", "any seed"] == 1
    assert found.role_of(*HELPS) == "facilitating"
    assert (found.ranking()[0], found.ranking()[-1]) == (HELPS, HARMS)
    assert (found.minus.mean(0) >= LIMIT).nonzero().tolist() == [list(HELPS)]
    assert (found.plus.mean(0) < LIMIT).nonzero().tolist() == [list(HARMS)]
    kept = make_minibatches(model, prompts, FitSettings(batch=4))
    torch.testing.assert_close(found.nll[2], kept.nll(found.minus))
    assert (found.nll[1] < found.ungated).all()
    assert found.warnings == ()


def test_scores_are_the_papers():
    found = gates_of(torch.tensor([[[0.9, 0.2, 0.7]]]), torch.tensor([[[0.8, 0.1, 0.2]]]))
    assert torch.equal(found.facilitation, found.minus)
    torch.testing.assert_close(found.irrelevance, torch.tensor([[[0.9 * 0.2, 0.18, 0.7 * 0.8]]]))
    torch.testing.assert_close(found.interference, torch.tensor([[[0.1, 0.8, 0.3]]]))
    assert found.shares() == pytest.approx(
        {"facilitation": 1 / 3, "irrelevance": 1 / 3, "interference": 1 / 3}
    )


def test_the_result_survives_saving(tmp_path):
    found = gates_of(torch.rand(2, 2, 4), torch.rand(2, 2, 4))
    again = Gates.load(found.save(tmp_path / "gates"))
    assert torch.equal(again.plus, found.plus)
    assert again.frame().equals(found.frame())
    columns = ["seed", "layer", "head", "g_plus", "g_minus"]
    assert found.frame().columns.tolist() == [
        *columns,
        "facilitation",
        "irrelevance",
        "interference",
    ]


def test_fits_that_have_not_ended_are_named_by_their_seeds():
    flat, still, ends = torch.full((3, 100), 0.2), torch.zeros(3), torch.full((3,), 0.2)
    assert unfinished("free", flat, still, ends, 0.2) is None
    one = flat.clone()
    one[1] = torch.linspace(1.0, 0.2, 100)
    assert "still falls with 1 of 3 seeds" in str(unfinished("free", one, still, ends, 0.3))
    high = torch.tensor([0.2, 1.2, 1.2])
    assert "worse than none" in str(unfinished("free", flat, still, high, 0.2))
    assert "with 2 of 3 seeds" in str(unfinished("free", flat, still, high, 0.2))
    moved = torch.tensor([0.0, 0.2, 0.01])
    told = "the plus fit has not converged: gates still move with 1 of 3 seeds"
    assert told in str(unfinished("plus", flat, moved, ends, 0.2))
    assert "contrastive fit has not converged" in str(unfinished("contrastive", flat, moved))
    assert unfinished("minus", one, still, ends, 0.2) is None
    noisy = 0.2 + 0.2 * torch.rand(3, 100, generator=torch.Generator().manual_seed(0))
    assert unfinished("free", noisy, still, ends, 0.3) is None
    assert "too few to tell" in str(unfinished("plus", flat[:, :19], still, ends, 0.2))
    assert len(gates_of(torch.rand(2, 2, 4), torch.rand(2, 2, 4)).warnings) == 1
