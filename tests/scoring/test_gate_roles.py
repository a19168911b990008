"""What fitted gates say: scores, roles, saved results, fits that have not ended."""

from typing import Any

import pytest
import torch
from gate_cases import HARMS, HELPS, gates_of, marys, planted_gates, planted_roles

from mechheads.models.model import encoder_of
from mechheads.scoring.effects import HeadEffects
from mechheads.scoring.gate_fitting import FitSettings, make_minibatches
from mechheads.scoring.gate_roles import LIMIT, Gates, unfinished
from mechheads.scoring.head_gating import gating, judge_roles


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


@pytest.mark.hooked
@torch.no_grad()
def test_the_gain_of_a_head_is_what_opening_its_gate_adds_by_hooks(checkpoint):
    model, prompts = planted_roles(checkpoint("gpt2")), marys()
    found = gates_of(torch.rand(3, 2, 4), torch.rand(3, 2, 4))
    roles = judge_roles(model, found, prompts, quiet=True)
    base = found.plus.mean(0)
    for layer, head in (HELPS, HARMS, (0, 3)):
        for i, pair in enumerate(prompts):
            said = []
            for gate in (1.0, 0.0):
                gates = base.clone()
                gates[layer, head] = gate

                def scale(z, hook, gates=gates):
                    return z * gates[hook.layer()][:, None]

                names = [f"blocks.{own}.attn.hook_z" for own in range(2)]
                ids = torch.tensor([encoder_of(model).ids(pair.clean)])
                logits = model.run_with_hooks(ids, fwd_hooks=[(name, scale) for name in names])
                (answer,) = model.tokenizer.encode(" Mary")
                said.append(float(logits[0, -1].log_softmax(-1)[answer]))
            assert float(roles.gain[i, layer, head]) == pytest.approx(said[0] - said[1], abs=1e-5)


def test_planted_heads_gain_on_every_prompt_and_idle_ones_on_none(checkpoint):
    model = planted_roles(checkpoint("gpt2"))
    roles = judge_roles(model, planted_gates(checkpoint("gpt2")), marys(), quiet=True)
    frame: Any = roles.frame().set_index(["layer", "head"])
    assert frame.loc[HELPS, "role"] == "facilitating"
    assert frame.loc[HELPS, "gain_low"] > 0
    assert frame.loc[HARMS, "role"] == "interfering"
    assert frame.loc[HARMS, "gain_high"] < 0
    idle = frame.drop([HELPS, HARMS])
    assert set(idle["role"]) == {"irrelevant"}
    assert float(idle[["gain", "gain_low", "gain_high"]].abs().to_numpy().max()) < 1e-5
    assert (frame["seeds_agree"] == 1).all()


def test_seeds_are_no_samples_so_their_scores_have_no_p_values(checkpoint, tmp_path):
    """Seeds that agree to the last digit once made idle heads significant, with p = 0."""
    model, prompts = planted_roles(checkpoint("gpt2")), marys()
    found = gating(model, prompts, seeds=3, updates=40, held_out=prompts[:5], quiet=True)
    frame = found.frame()
    assert frame[["se", "ci_low", "ci_high", "p_value"]].isna().to_numpy().all()
    assert found.headline["significant"] is None
    assert "p < 0.05" not in found.sentence
    assert "all seeds agree on the role of" in found.sentence
    assert found.roles is not None
    assert found.roles.held_out
    assert found.warnings == tuple(found.notes["warnings"])
    assert found.roles.gain.shape == (5, 2, 4)
    short = gating(model, prompts, seeds=1, updates=2, quiet=True)
    assert short.roles is not None
    assert not short.roles.held_out
    assert "too few to tell" in short.warnings[0]
    again = HeadEffects.load(found.save(tmp_path))
    assert again.frame().equals(frame)
    hover = str(found.plot().to_dict())
    assert "of seeds agree" in hover
    assert "p (corrected)" not in hover


def test_agreement_is_the_share_of_seeds_with_the_most_frequent_role():
    plus = torch.tensor([[[0.9, 0.9, 0.6]], [[0.9, 0.2, 0.6]], [[0.9, 0.2, 0.6]]])
    minus = torch.tensor([[[0.8, 0.1, 0.4]], [[0.8, 0.1, 0.4]], [[0.1, 0.1, 0.4]]])
    found = gates_of(plus, minus)
    torch.testing.assert_close(found.agreement, torch.tensor([[2 / 3, 2 / 3, 0.0]]))
    assert [found.role_of(0, head) for head in range(3)] == ["facilitating", "interfering", ""]
    assert found.headline["heads_all_seeds_agree_on"] == 0


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
    steep = torch.tensor([0.1, 0.0, 0.0])
    told = "gating cannot see this model with 2 of 3 seeds"
    for fit in ("free", "plus", "minus"):
        words = str(unfinished(fit, one, moved, high, 0.2, steep))
        assert told in words
        assert "--updates" not in words
    assert unfinished("free", flat, still, ends, 0.2, steep + 0.1) is None
    noisy = 0.2 + 0.2 * torch.rand(3, 100, generator=torch.Generator().manual_seed(0))
    assert unfinished("free", noisy, still, ends, 0.3) is None
    assert "too few to tell" in str(unfinished("plus", flat[:, :19], still, ends, 0.2))
    assert len(gates_of(torch.rand(2, 2, 4), torch.rand(2, 2, 4)).warnings) == 1
