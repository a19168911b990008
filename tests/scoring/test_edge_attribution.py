"""Edge attribution against gradients of TransformerLens's own split inputs, and against heads."""

from dataclasses import replace

import pytest
import torch
from pairs import random_pairs

from mechheads.engine.edge_graph import EdgeGraph
from mechheads.errors import MechheadsError
from mechheads.metrics.token import METRICS, score
from mechheads.models.hooks import has_hooks
from mechheads.models.load import load
from mechheads.models.model import encoder_of
from mechheads.prompts.batches import batches
from mechheads.scoring.attribution_patching import attribution, ig
from mechheads.scoring.edge_attribution import edge_attribution


def value_of(batch):
    return lambda logits: METRICS["logit_diff"](score(logits[:, -batch.steps :], batch))


def write(model, clean, corrupt, layer, head):
    name = f"blocks.{layer}.attn.hook_z"
    return (corrupt[name] - clean[name])[:, :, head] @ model.W_O[layer, head]


@pytest.fixture(params=["gpt2", "llama-gqa"])
def case(request, checkpoint):
    """A model of two layers, prompts, and the caches of both runs."""
    model = load(str(checkpoint(request.param)))
    prompts = random_pairs(model, 3)
    (batch,) = batches(encoder_of(model), prompts)
    with torch.no_grad():
        clean, corrupt = (model.run_with_cache(t)[1] for t in (batch.clean, batch.corrupt))
    return model, prompts, batch, clean, corrupt


@pytest.mark.hooked
def test_edge_attribution_is_the_write_times_the_gradient_of_each_input(case):
    model, prompts, batch, clean, corrupt = case
    ours = edge_attribution(model, prompts)
    model.set_use_split_qkv_input(True)
    model.set_ungroup_grouped_query_attention(model.cfg.n_key_value_heads is not None)
    kept = {}

    def keep(x, hook):
        kept[hook.name] = x

    names = [f"blocks.1.hook_{part}_input" for part in "qkv"]
    try:
        with torch.enable_grad():
            inputs = clean["blocks.0.hook_resid_pre"].clone().requires_grad_()
            logits = model.run_with_hooks(
                inputs, start_at_layer=0, fwd_hooks=[(name, keep) for name in names]
            )
            slopes = torch.autograd.grad(
                value_of(batch)(logits).mean(), [kept[name] for name in names]
            )
    finally:
        model.set_use_split_qkv_input(False)
        model.set_ungroup_grouped_query_attention(False)
    for part, slope in zip("qkv", slopes, strict=True):
        for sender in range(model.cfg.n_heads):
            change = write(model, clean, corrupt, 0, sender)
            wanted = -torch.einsum("bpd,bphd->h", change, slope)
            torch.testing.assert_close(
                ours.values[part][0, sender, 1], wanted, rtol=1e-3, atol=1e-6
            )
    frame = ours.strongest(5)
    assert frame.effect.abs().is_monotonic_decreasing
    assert (frame.from_layer < frame.to_layer).all()
    assert not has_hooks(model)


def test_edge_attribution_of_the_logits_is_the_write_times_the_gradient_of_the_end(case):
    model, prompts, batch, clean, corrupt = case
    ours = edge_attribution(model, prompts).logits
    end = clean[f"blocks.{model.cfg.n_layers - 1}.hook_resid_post"].clone().requires_grad_()
    value = value_of(batch)(model.unembed(model.ln_final(end))).mean()
    (slope,) = torch.autograd.grad(value, end)
    with torch.no_grad():
        wanted = [
            [-(write(model, clean, corrupt, layer, head) * slope).sum() for head in range(4)]
            for layer in range(2)
        ]
    torch.testing.assert_close(ours, torch.tensor(wanted), rtol=1e-3, atol=1e-6)
    assert ours is not None
    assert ours.abs().min() > 0


@pytest.mark.parametrize("kind", ["gpt2", "llama-gqa", "neox", "neox-sequential", "gpt-neo"])
@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize("direction", ["noising", "denoising"])
def test_the_edges_of_a_head_add_up_to_its_attribution(kind, steps, direction, checkpoint):
    model = load(str(checkpoint(kind)))
    prompts = random_pairs(model, 3, (9, 9, 7), tokens=2 if kind == "gpt2" else 1)
    found = edge_attribution(model, prompts, direction=direction, steps=steps)
    if steps:
        heads = ig(model, prompts, direction=direction, steps=steps)
    else:
        heads = attribution(model, prompts, direction=direction)
    assert found.logits is not None
    assert found.mlps is not None
    total = found.logits + found.mlps.sum(-1) + sum(v.sum((2, 3)) for v in found.values.values())
    torch.testing.assert_close(total, heads.scores, rtol=1e-3, atol=1e-6)
    assert found.mlps.abs().max() > 1e-4


def test_heads_that_share_keys_are_one_receiver(checkpoint):
    model = load(str(checkpoint("llama-gqa")))
    found = edge_attribution(model, random_pairs(model, 3))
    graph = EdgeGraph(2, 4, 2, True, False)
    table = found.by_receiver(graph)
    keys = table[:4, graph.columns(1, "k")]
    torch.testing.assert_close(keys[:, 0], found.values["k"][0, :, 1, :2].sum(-1))
    torch.testing.assert_close(keys[:, 1], found.values["k"][0, :, 1, 2:].sum(-1))
    assert not table[~graph.exists].any()
    assert int((table != 0).sum()) == len(graph.edges) == 4 * (4 + 2 + 2) + 4 * (2 + 1) + 8


def test_edge_attribution_copies_no_weights_of_all_layers(tiny, monkeypatch):
    def copied(self):
        raise AssertionError("model.W_O stacks the weights of all layers")

    monkeypatch.setattr(type(tiny), "W_O", property(copied))
    edge_attribution(tiny, random_pairs(tiny, 2))


def test_heads_behind_a_norm_have_no_edges(checkpoint):
    model = load(str(checkpoint("gemma2")))
    with pytest.raises(MechheadsError, match="norm between"):
        edge_attribution(model, random_pairs(model, 3))


def test_errors_of_equal_prompts_are_0_and_do_not_cancel_in_rounding(tiny):
    one = random_pairs(tiny, 3)
    found = edge_attribution(tiny, replace(one, pairs=one.pairs[:1] * 7), budget=1)
    for part, values in found.values.items():
        assert float(values.abs().max()) > 1e-3
        assert float((found.errors[part] / values.abs().max()).max()) < 1e-6
