"""Paths between heads against TransformerLens's own split inputs; direct writes add up."""

import pytest
import torch
from pairs import random_pairs

from mechheads.errors import MechheadsError
from mechheads.metrics.token import METRICS, score
from mechheads.models.hooks import has_hooks
from mechheads.models.load import load
from mechheads.models.model import encoder_of
from mechheads.prompts.batches import batches
from mechheads.scoring.direct_logit_attribution import direct
from mechheads.scoring.path_patching import edge_attribution, path_patch


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


@pytest.mark.parametrize("part", ["q", "k", "v"])
def test_a_path_to_a_head_changes_what_that_input_of_it_reads(part, case):
    model, prompts, batch, clean, corrupt = case
    ours = path_patch(model, prompts, to=(1, 2), part=part)
    value = value_of(batch)
    model.set_use_split_qkv_input(True)
    model.set_ungroup_grouped_query_attention(model.cfg.n_key_value_heads is not None)
    try:
        for sender in range(model.cfg.n_heads):

            def add(x, hook, sender=sender):
                x = x.clone()
                x[:, :, 2] += write(model, clean, corrupt, 0, sender)
                return x

            with torch.no_grad():
                before = value(model(batch.clean))
                after = model.run_with_hooks(
                    batch.clean, fwd_hooks=[(f"blocks.1.hook_{part}_input", add)]
                )
            wanted = before - value(after)
            torch.testing.assert_close(
                ours.values[batch.pairs, 0, sender], wanted, rtol=1e-3, atol=1e-5
            )
    finally:
        model.set_use_split_qkv_input(False)
        model.set_ungroup_grouped_query_attention(False)
    assert ours.values[:, 0].abs().max() > 1e-6
    assert (ours.values[:, 1] == 0).all()


def test_a_path_to_the_logits_skips_everything_in_between(case):
    model, prompts, batch, clean, corrupt = case
    ours = path_patch(model, prompts)
    value = value_of(batch)
    end = f"blocks.{model.cfg.n_layers - 1}.hook_resid_post"
    for layer, head in ((0, 1), (1, 3)):
        with torch.no_grad():
            changed = clean[end] + write(model, clean, corrupt, layer, head)
            before, after = (value(model.unembed(model.ln_final(x))) for x in (clean[end], changed))
        torch.testing.assert_close(
            ours.values[batch.pairs, layer, head], before - after, rtol=1e-3, atol=1e-5
        )


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


def test_receivers_that_do_not_exist_are_named(tiny):
    prompts = random_pairs(tiny, 3)
    with pytest.raises(MechheadsError, match=r"L0H1 cannot be a receiver\. .* layer from 1 to 1 "):
        path_patch(tiny, prompts, to=(0, 1))
    with pytest.raises(MechheadsError, match="logits"):
        path_patch(tiny, prompts, to="logit")
    with pytest.raises(MechheadsError, match="input"):
        path_patch(tiny, prompts, to=(1, 1), part="z")


def test_heads_behind_a_norm_have_no_paths(checkpoint):
    model = load(str(checkpoint("gemma2")))
    with pytest.raises(MechheadsError, match="norm between"):
        path_patch(model, random_pairs(model, 3))
    with pytest.raises(MechheadsError, match=r"norm between|caps its logits"):
        direct(model, random_pairs(model, 3))


def test_direct_parts_are_those_of_the_cache(case):
    model, prompts, batch, clean, _ = case
    ours = direct(model, prompts)
    clean.compute_head_results()
    answers = torch.stack([batch.choices[:, 0, 0], batch.choices[:, 1, 0]], dim=1)
    writes = clean.stack_head_results(layer=-1, pos_slice=-1)
    parts = clean.apply_ln_to_stack(writes, layer=-1, pos_slice=-1)
    # apply_ln_to_stack leaves out the norm's weight, which TransformerLens folds elsewhere.
    along = model.W_U[:, answers[:, 0]] - model.W_U[:, answers[:, 1]]
    along = model.ln_final.w[:, None] * along
    wanted = torch.einsum("cbd,db->bc", parts, along)
    heads = model.cfg.n_layers * model.cfg.n_heads
    torch.testing.assert_close(
        ours.values[batch.pairs].flatten(1), wanted[:, :heads].detach(), rtol=1e-3, atol=1e-5
    )


def test_direct_of_other_metrics_and_longer_answers_is_refused(tiny):
    with pytest.raises(MechheadsError, match="logit_diff only, not prob_diff"):
        direct(tiny, random_pairs(tiny, 3), "prob_diff")
    with pytest.raises(MechheadsError, match="up to 2 tokens"):
        direct(tiny, random_pairs(tiny, 3, tokens=2))


def test_edge_attribution_copies_no_weights_of_all_layers(tiny, monkeypatch):
    def copied(self):
        raise AssertionError("model.W_O stacks the weights of all layers")

    monkeypatch.setattr(type(tiny), "W_O", property(copied))
    edge_attribution(tiny, random_pairs(tiny, 2))
