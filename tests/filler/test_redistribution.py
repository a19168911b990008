"""ARM: which activations it moves, where it acts, and that it leaves nothing behind."""

from typing import Any

import pytest
import torch

from mechheads.engine.generate import generate
from mechheads.filler.conditions import ARM_C, ARM_PERCENTILE
from mechheads.filler.redistribution import arm, redistribute
from mechheads.models.hooks import has_hooks
from mechheads.models.load import load
from mechheads.models.model import encoder_of, family_of


def test_redistribution_moves_the_nearest_to_zero_and_keeps_their_signs():
    x = torch.randn(12, 50, generator=torch.Generator().manual_seed(3))
    x[0, :3] = 0.0
    found = redistribute(x, ARM_C, ARM_PERCENTILE, 0.02, seed=0)
    moved = found != x
    sizes = x.abs()
    eps = 1.4826 * (sizes - sizes.median()).abs().median() * ARM_C
    wanted = (sizes < eps).float().mean()
    assert 0.02 < wanted < 0.25
    assert moved.float().mean() == pytest.approx(wanted.item())
    assert sizes[moved].max() <= sizes[~moved].min()
    assert ((found >= 0) == (x >= 0))[moved].all()
    assert found[moved].min() >= x.min()
    assert found[moved].max() <= torch.quantile(x, ARM_PERCENTILE / 100) + 0.05
    assert (found[moved].abs() > eps).float().mean() > 0.5
    assert torch.equal(found, redistribute(x, ARM_C, ARM_PERCENTILE, 0.02, seed=0))
    assert not torch.equal(found, redistribute(x, ARM_C, ARM_PERCENTILE, 0.02, seed=1))


PMINS = [(0.0, 0.02, 0.02), (0.0, 0.2, 0.2), (50.0, 0.2, 0.25)]


@pytest.mark.parametrize(("c", "pmin", "share"), PMINS)
def test_redistribution_moves_pmin_to_25_percent(c, pmin, share):
    x = torch.randn(10, 40, generator=torch.Generator().manual_seed(0))
    moved = redistribute(x, c, 99.5, pmin, seed=0) != x
    assert moved.float().mean().item() == pytest.approx(share)


# The authors' pmin; GPT-2, which they did not use, gets that of Qwen and Gemma.
@pytest.mark.parametrize(
    ("kind", "family", "pmin"),
    [
        ("llama", "Llama", 0.2),
        ("qwen3", "Qwen", 0.02),
        ("gemma2", "Gemma", 0.02),
        ("gpt2", "GPT", 0.02),
    ],
)
def test_arm_moves_at_least_the_share_of_the_model_s_family(kind, family, pmin, checkpoint):
    model = load(str(checkpoint(kind)))
    tokens = torch.tensor([encoder_of(model).ids("Then Tom and Anna gave")])
    assert family_of(model) == family
    ends = []
    for given in (None, pmin, 0.25):
        with arm(model, c=0.0, pmin=given), torch.no_grad():
            ends.append(model(tokens))
    assert torch.equal(ends[0], ends[1])
    assert not torch.allclose(ends[0], ends[2], atol=1e-5)


@pytest.mark.hooked
@pytest.mark.parametrize(("kind", "pmin"), [("llama", 0.2), ("gpt2", 0.02)])
def test_arm_acts_on_the_activation_before_a_gate(checkpoint, kind, pmin):
    model: Any = load(str(checkpoint(kind)))
    tokens = torch.tensor([encoder_of(model).ids("Then Tom and Anna gave")])
    plain = model(tokens)
    kept = {}

    def keep(value, hook):
        kept[hook.name] = value

    inside = "blocks.0.mlp.hook_pre", "blocks.0.mlp.hook_pre_linear", "blocks.0.hook_mlp_out"
    names = [name for name in inside if name in model.hook_dict]
    with arm(model, c=0.3, percentile=90.0, seed=5):
        changed = model.run_with_hooks(tokens, fwd_hooks=[(name, keep) for name in names])
    mlp = model.blocks[0].mlp
    moved = redistribute(mlp.act_fn(kept[inside[0]])[0], 0.3, 90.0, pmin, seed=5)
    assert (inside[1] in kept) == (kind == "llama")
    after = moved * kept[inside[1]] + mlp.b_in if kind == "llama" else moved[None]
    torch.testing.assert_close(kept[inside[2]], after @ mlp.W_out + mlp.b_out)
    assert not torch.allclose(plain, changed, atol=1e-3)
    assert torch.equal(model(tokens), plain)
    assert not has_hooks(model)


def test_arm_changes_answers_and_not_by_who_runs_together(mini, questions):
    whole = torch.ones(1, mini.cfg.n_layers, mini.cfg.n_heads)
    texts = [q.prompt for q in questions[:4]]
    with arm(mini, c=5.0, percentile=100.0):
        said = generate(mini, texts, whole, max_tokens=3, quiet=True)[0]
        alone = [generate(mini, [text], whole, max_tokens=3, quiet=True)[0][0] for text in texts]
    assert said == alone
    assert said != generate(mini, texts, whole, max_tokens=3, quiet=True)[0]
