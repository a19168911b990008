"""Estimates from gradients: exact where the model is linear, and equal to gradients by hooks."""

from typing import Any

import pytest
import torch
from pairs import random_pairs

from mechheads.benchmarks.timings import random_prompts, tokenizer_of_words
from mechheads.errors import MechheadsError
from mechheads.metrics.token import METRICS, score
from mechheads.models.load import load
from mechheads.models.model import encoder_of
from mechheads.models.untrained import random_model
from mechheads.prompts.batches import batches
from mechheads.scoring.activation_patching import patch
from mechheads.scoring.attribution_patching import attribution, ig
from mechheads.scoring.backward.atp import atp
from mechheads.scoring.registry import METHODS, score_heads
from mechheads.scoring.screened.hybrid import hybrid

TINY: dict[str, Any] = {"n_heads": 4, "d_model": 16, "d_head": 4, "d_vocab": 50, "n_ctx": 16}


@pytest.fixture(scope="module")
def linear():
    """One layer of attention without norms: logits are linear in every head's z."""
    return random_model(
        tokenizer_of_words(50), n_layers=1, attn_only=True, normalization_type=None, **TINY
    )


def by_hooks(model, batch, inputs, toward, away):
    """Slope of the metric along every head's change, with TransformerLens's hooks and autograd."""
    kept = {}

    def keep(z, hook):
        kept[hook.name] = z

    names = [f"blocks.{layer}.attn.hook_z" for layer in range(model.cfg.n_layers)]
    with torch.enable_grad():
        logits = model.run_with_hooks(
            inputs.clone().requires_grad_(),
            start_at_layer=0,
            fwd_hooks=[(name, keep) for name in names],
        )
        value = METRICS["logit_diff"](score(logits[:, -batch.steps :], batch)).sum()
        slopes = torch.autograd.grad(value, [kept[name] for name in names])
    return torch.stack(
        [
            ((toward[name] - away[name]) * slope).sum((1, 3))
            for name, slope in zip(names, slopes, strict=True)
        ],
        dim=1,
    )


def caches(model, batch):
    with torch.no_grad():
        return [model.run_with_cache(tokens)[1] for tokens in (batch.clean, batch.corrupt)]


@pytest.mark.hooked
@pytest.mark.parametrize("method", [attribution, ig, hybrid])
@pytest.mark.parametrize("direction", ["noising", "denoising"])
def test_estimates_are_exact_on_a_linear_model(method, direction, linear):
    prompts = random_prompts(5, 8, 3, 50)
    exact = patch(linear, prompts, direction=direction)
    ours = method(linear, prompts, direction=direction)
    assert exact.values.abs().max() > 1e-6
    torch.testing.assert_close(ours.values, exact.values, rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(ours.clean, exact.clean)
    torch.testing.assert_close(ours.corrupt, exact.corrupt)


@pytest.mark.hooked
@pytest.mark.parametrize("kind", ["gpt2", "llama-gqa", "neox", "gemma2"])
def test_attribution_is_the_change_times_the_gradient_by_hooks(kind, checkpoint):
    model = load(str(checkpoint(kind)))
    prompts = random_pairs(model, 3)
    (batch,) = batches(encoder_of(model), prompts)
    clean, corrupt = caches(model, batch)
    inputs = clean["blocks.0.hook_resid_pre"]
    wanted = -by_hooks(model, batch, inputs, corrupt, clean)
    ours = attribution(model, prompts).values[batch.pairs]
    torch.testing.assert_close(ours, wanted, rtol=1e-3, atol=1e-6)
    inputs = corrupt["blocks.0.hook_resid_pre"]
    wanted = by_hooks(model, batch, inputs, clean, corrupt)
    ours = attribution(model, prompts, direction="denoising").values[batch.pairs]
    torch.testing.assert_close(ours, wanted, rtol=1e-3, atol=1e-6)


@pytest.mark.hooked
@pytest.mark.parametrize("kind", ["gpt2", "llama-gqa", "gemma2"])
def test_ig_averages_gradients_between_the_two_inputs(kind, checkpoint):
    model = load(str(checkpoint(kind)))
    prompts = random_pairs(model, 3)
    (batch,) = batches(encoder_of(model), prompts)
    clean, corrupt = caches(model, batch)
    ends = [cache["blocks.0.hook_resid_pre"] for cache in (corrupt, clean)]
    parts = [
        by_hooks(model, batch, torch.lerp(ends[0], ends[1], share), corrupt, clean)
        for share in (0.25, 0.75)
    ]
    ours = ig(model, prompts, steps=2).values[batch.pairs]
    torch.testing.assert_close(ours, -(parts[0] + parts[1]) / 2, rtol=1e-3, atol=1e-6)


def test_answers_of_several_tokens_have_the_slope_of_a_small_change(tiny):
    prompts = random_pairs(tiny, 3, (8, 8), tokens=2)
    (batch,) = batches(encoder_of(tiny), prompts)
    clean, corrupt = caches(tiny, batch)
    name, step = "blocks.0.attn.hook_z", 1e-2

    def nudge(z, hook):
        z = z.clone()
        z[:, :, 1] += step * (corrupt[name] - clean[name])[:, :, 1]
        return z

    with torch.no_grad():
        runs = (tiny(batch.clean), tiny.run_with_hooks(batch.clean, fwd_hooks=[(name, nudge)]))
    before, after = (METRICS["logit_diff"](score(r[:, -batch.steps :], batch)) for r in runs)
    ours = attribution(tiny, prompts).values[batch.pairs, 0, 1]
    torch.testing.assert_close(ours, (before - after) / step, rtol=0.05, atol=1e-3)


def test_metrics_without_a_gradient_are_refused(tiny):
    with pytest.raises(MechheadsError, match="accuracy is a step function"):
        attribution(tiny, random_pairs(tiny, 3), "accuracy")


def test_hybrid_verifies_the_strongest_and_says_what_it_may_have_missed(tiny):
    prompts = random_pairs(tiny, 3)
    exact, guessed = patch(tiny, prompts), atp(tiny, prompts)
    ours = hybrid(tiny, prompts, verify=3, sample=2)
    for layer, head in guessed.ranking()[:3]:
        torch.testing.assert_close(ours.values[:, layer, head], exact.values[:, layer, head])
    same = (ours.values == guessed.values).all(0)
    assert int(same.sum()) == ours.notes["unverified"] == 3
    if ours.notes["missed"] == 0:
        # None of two: the share that is missed half of the time in twenty is 1 - sqrt(0.05).
        assert ours.notes["missed_at_most"] == pytest.approx(3 * (1 - 0.05**0.5))


def test_hybrid_of_all_heads_is_patch(tiny):
    prompts = random_pairs(tiny, 3)
    ours = hybrid(tiny, prompts, verify=8, sample=0)
    torch.testing.assert_close(ours.values, patch(tiny, prompts).values)
    assert ours.notes["unverified"] == ours.notes["missed_at_most"] == 0


@pytest.mark.parametrize("method", METHODS)
def test_every_method_gives_the_same_kind_of_result(method, tiny):
    prompts = random_pairs(tiny, 3)
    few: dict[str, Any] = {"seeds": 3, "updates": 20} if method == "gating" else {}  # over seeds
    found = score_heads(tiny, prompts, method, **few)
    assert found.method.partition(":")[0] == ("patch" if method == "auto" else method)
    rows = 1 if method == "ensemble" else 3
    assert found.values.shape == (rows, tiny.cfg.n_layers, tiny.cfg.n_heads)
    assert found.frame().columns.tolist() == [
        "layer",
        "head",
        "effect",
        "se",
        "ci_low",
        "ci_high",
        "p_value",
        *(["role", "seeds_agree", "gain", "gain_low", "gain_high"] if method == "gating" else []),
    ]
    about = METHODS[method].function.__doc__ or ""
    assert "ositive" in about or "ame sign" in about


def test_an_unknown_method_or_option_is_named(tiny):
    with pytest.raises(MechheadsError, match="attribution"):
        score_heads(tiny, random_pairs(tiny, 3), "atribution")
    with pytest.raises(MechheadsError, match="patch has no option steps"):
        score_heads(tiny, random_pairs(tiny, 3), "patch", steps=3)
