"""Fits of gates: batches, losses, gradients, the pull, seeds."""

import math
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from pairs import random_pairs

from mechheads.engine.cached_run import CachedRun
from mechheads.engine.direct import DirectEngine
from mechheads.engine.gate_losses import Minibatches, row_tokens
from mechheads.engine.head_subsets import measure_subsets
from mechheads.engine.hooked import HookedEngine
from mechheads.engine.interventions import Replace
from mechheads.engine.select import frozen
from mechheads.errors import MechheadsError
from mechheads.gating.contrast import Side, contrast
from mechheads.models.hooks import embed
from mechheads.models.load import load
from mechheads.models.model import encoder_of
from mechheads.progress import bar
from mechheads.scoring.gate_fitting import (
    FitSettings,
    descend,
    first_logits,
    fit_gates,
    make_minibatches,
    pull_slope,
    shown,
)


@pytest.mark.hooked
@pytest.mark.parametrize("kind", [HookedEngine, DirectEngine])
def test_open_gates_are_the_model(tiny, kind):
    """Bit for bit with the model's own blocks, to 1e-5 where they are computed anew."""
    prompts = random_pairs(tiny, 1, (8, 8))
    tokens = make_minibatches(tiny, prompts, FitSettings(batch=2)).every[0].clean
    entering = embed(tiny, tokens)
    gates = torch.rand(2, tiny.cfg.n_layers, tiny.cfg.n_heads)
    gates[0] = 1.0
    run = CachedRun(0, 1, [entering], [entering[:, :, None]])
    opened, changed = kind(tiny).rerun_from(run, entering, Replace(gates))
    _, cache = tiny.run_with_cache(torch.cat([tokens, tokens]))
    end = cache[f"blocks.{tiny.cfg.n_layers - 1}.hook_resid_post"][: len(tokens), -1:]
    if kind is HookedEngine:
        assert torch.equal(opened, end)
    torch.testing.assert_close(opened, end, rtol=1e-5, atol=1e-5)
    assert (changed - end).abs().max() > 1e-3


def test_an_update_has_as_many_prompts_as_the_batch_says_whatever_their_lengths(tiny):
    prompts = random_pairs(tiny, 1, (7, 7, 8, 9, 9, 9), tokens=2)
    minibatches = make_minibatches(tiny, prompts, FitSettings(batch=4))
    drawn = [minibatches.drawn(i).tolist() for i in range(60)]
    assert all(len(set(some)) == len(some) == 4 for some in drawn)
    cut = [minibatches.cut(torch.tensor(some)) for some in drawn]
    assert [sorted(p for b in some for p in b.pairs.tolist()) for some in cut] == [
        sorted(some) for some in drawn
    ]
    assert all(len({b.length for b in some}) > 1 for some in cut)
    counts = torch.tensor(drawn).flatten().bincount()
    assert len(counts) == 6
    assert counts.min() > 20  # 40 of each are expected
    assert drawn == [minibatches.drawn(i).tolist() for i in range(60)]


def test_the_loss_of_an_update_is_the_mean_over_its_prompts(tiny):
    prompts = random_pairs(tiny, 1, (7, 8, 8, 8, 9), tokens=2)
    gates = torch.rand(3, tiny.cfg.n_layers, tiny.cfg.n_heads)
    minibatches = make_minibatches(tiny, prompts, FitSettings(batch=5))
    alone = torch.stack([minibatches.nll_of(b, gates) for b in _one_by_one(minibatches)]).mean(
        (0, 2)
    )
    torch.testing.assert_close(minibatches.nll(gates), alone)
    torch.testing.assert_close(minibatches.slope(0, gates)[0], alone)
    tight = replace(minibatches, budget=1)
    for found, wanted in zip(tight.slope(0, gates), minibatches.slope(0, gates), strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("budget", [1, 40, 200, 5000])
def test_no_pass_holds_more_than_the_budget_unless_one_prompt_does(tiny, budget, monkeypatch):
    prompts = random_pairs(tiny, 1, (7, 8, 8, 8, 9, 30), tokens=3)
    fast = make_minibatches(tiny, prompts, FitSettings(batch=6), budget)
    assert fast.gated is not None
    for minibatches in (fast, replace(fast, gated=None)):
        done = torch.zeros(5)
        for measure, some in minibatches.passes(minibatches.drawn(0), 5):
            (part,) = measure.args  # a batch, or prompts drawn from several
            variants, prompts = len(range(5)[some]), len(part.pairs)
            done[some] += prompts
            if minibatches.gated is None:
                held = variants * len(part.clean) * row_tokens(tiny, part)
            else:
                held = 2 * variants * fast.gated.cost(part)  # with the pass beside it
            assert held <= budget or (variants == 1 and prompts == 1)
        assert (done == 6).all()
    (batch,) = minibatches.cut(minibatches.drawn(0))[-1:]
    logits = 3 * tiny.cfg.d_vocab_out / 4096
    assert row_tokens(tiny, batch) == math.ceil(32 + logits)
    monkeypatch.setattr(tiny.cfg, "n_layers", 30)  # every layer is remembered, six hold one token
    assert row_tokens(tiny, batch) == math.ceil(5 * 32 + logits)


@pytest.mark.parametrize("tokens", [1, 3])
def test_the_loss_is_the_targets_negative_log_probability_per_token(tiny, tokens):
    prompts = random_pairs(tiny, 2, (7, 9, 9), tokens=tokens)
    minibatches = make_minibatches(tiny, prompts, FitSettings(batch=2))
    torch.manual_seed(1)
    gates = torch.rand(2, tiny.cfg.n_layers, tiny.cfg.n_heads)
    for batch in minibatches.every:
        found = minibatches.nll_of(batch, gates)
        for variant in range(2):
            hooks = [
                (
                    f"blocks.{layer}.attn.hook_z",
                    lambda z, hook, g=gates[variant, layer]: z * g[:, None],
                )
                for layer in range(tiny.cfg.n_layers)
            ]
            for column, pair in enumerate(batch.pairs.tolist()):
                text = prompts.pairs[pair]
                start = len(encoder_of(tiny).ids(text.clean))
                whole = torch.tensor([encoder_of(tiny).ids(text.clean + text.answers[0])])
                logits = tiny.run_with_hooks(whole, fwd_hooks=hooks).log_softmax(-1)
                target = whole[0, start:]
                said = logits[0, start - 1 : -1].gather(-1, target[:, None])[:, 0]
                assert len(target) == tokens
                assert found[variant, column].item() == pytest.approx(-said.mean().item(), abs=1e-4)


def test_gradients_are_those_of_finite_differences(checkpoint):
    model = load(str(checkpoint("gpt2")), dtype="float64")
    minibatches = make_minibatches(model, random_pairs(model, 1, (8, 9, 9)), FitSettings(batch=3))
    torch.manual_seed(0)
    logits = torch.randn(2, model.cfg.n_layers, model.cfg.n_heads, dtype=torch.float64)
    logits[0, 1, 2] = 4.5  # where the pull has ended
    pull = torch.tensor([0.3, -0.2], dtype=torch.float64)
    gates = logits.sigmoid()
    gradient = minibatches.slope(0, gates)[1] * gates * (1 - gates) + pull_slope(logits, pull, 4.0)
    heads = model.cfg.n_layers * model.cfg.n_heads

    def objective(at: torch.Tensor) -> torch.Tensor:
        return minibatches.slope(0, at.sigmoid())[0] - pull * at.clamp(-4, 4).sum((1, 2)) / heads

    for place in ((0, 0, 1), (0, 1, 2), (1, 1, 3)):
        step = torch.zeros_like(logits)
        step[place] = 1e-5
        slopes = (objective(logits + step) - objective(logits - step)) / 2e-5
        assert gradient[place].item() == pytest.approx(slopes[place[0]].item(), rel=1e-4, abs=1e-8)


@pytest.mark.hooked
def test_a_fit_remembers_nothing_for_gradients_of_weights(tiny, monkeypatch):
    minibatches = make_minibatches(tiny, random_pairs(tiny, 1, (9, 9, 9)), FitSettings(batch=3))
    gates = torch.rand(2, tiny.cfg.n_layers, tiny.cfg.n_heads)

    def remembered(work: Any) -> int:
        """Numbers that depend on the gates: at the end of the run, or on the way to it."""
        sizes: dict[int, int] = {}

        def pack(x: torch.Tensor) -> torch.Tensor:
            if x.grad_fn is not None:  # not a weight
                sizes[x.data_ptr()] = x.numel()
            return x

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            work()
        return sum(sizes.values())

    assert any(weight.requires_grad for weight in tiny.parameters())
    for way in (minibatches, replace(minibatches, gated=None)):
        less = remembered(partial(way.slope, 0, gates))
        with monkeypatch.context() as patched:
            patched.setattr("mechheads.engine.gate_losses.frozen", lambda _: nullcontext())
            assert less < 0.85 * remembered(partial(way.slope, 0, gates))


def test_weights_want_gradients_again_after_they_were_frozen(tiny):
    before = [weight.requires_grad for weight in tiny.parameters()]
    with frozen(tiny):
        assert not any(weight.requires_grad for weight in tiny.parameters())
    assert any(before)
    assert [weight.requires_grad for weight in tiny.parameters()] == before
    with pytest.raises(KeyError), frozen(tiny):
        raise KeyError
    assert [weight.requires_grad for weight in tiny.parameters()] == before


def test_the_pull_alone_ends_at_the_clip_and_no_further():
    recipe = FitSettings(seeds=3, updates=300)
    start = first_logits(recipe, (2, 4))
    start[:, 0, :2] = torch.tensor([9.0, -9.0])  # where nothing pulls
    for pull, end in ((0.1, torch.tensor(4.0)), (-0.1, torch.tensor(-4.0)), (0.0, start)):
        found = _descend(recipe, start, torch.full((3,), pull), 0.0).logits
        assert torch.equal(found, end.expand_as(found))


def test_the_loss_takes_logits_beyond_the_clip_against_the_pull():
    recipe = FitSettings(seeds=1, updates=300)
    start = torch.zeros(1, 1, 2)
    for pull in (0.0, 0.1):
        assert (_descend(recipe, start, torch.tensor([pull]), 9.0).logits < -4.5).all()
    assert (_descend(recipe, start, torch.tensor([0.0]), -9.0).logits > 4.5).all()


def step_model(checkpoint):
    """A GPT-2 whose answers come from the last MLP alone, which sees the heads through a step."""
    model: Any = load(str(checkpoint("gpt2")))
    half = model.cfg.d_model // 2
    with torch.no_grad():
        for block in model.blocks:
            block.attn.W_O[..., half:] = 0.0
            block.attn.b_O[half:] = 0.0
        model.blocks[0].mlp.W_out.zero_()
        model.blocks[1].mlp.W_out[:, :half] = 0.0
        model.W_E[:, half:] = 0.0
        model.W_pos[:, half:] = 0.0
        model.W_U[:half] = 0.0
    model.ln_final = torch.nn.Identity()
    model.blocks[1].mlp.act_fn = lambda x: (x > 0).to(x)
    return model


@pytest.mark.hooked
def test_a_model_that_passes_no_gradient_is_an_error(checkpoint):
    model = step_model(checkpoint)
    prompts = random_pairs(model, 1, (8, 8, 8, 8))
    shape = (1, model.cfg.n_layers, model.cfg.n_heads)
    keep = torch.cat([torch.ones(shape), torch.zeros(shape)])
    whole, none = measure_subsets(model, prompts, keep, "logprob", replacement="zero", quiet=True)
    assert (whole - none).abs().max() > 1e-3  # the heads matter
    side, few = Side("both", prompts, prompts), FitSettings(seeds=2)
    fits: Any = ((fit_gates, [prompts]), (contrast, [side, side]))
    for fit, given in fits:
        with pytest.raises(MechheadsError, match="gating cannot see gpt2") as error:
            fit(model, *given, few, quiet=True)
        assert "--updates" not in str(error.value)


def test_a_loss_that_is_no_number_is_named_with_its_update():
    def slope(update: int, gates: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tensor([0.1, math.nan if update == 6 else 0.1]), torch.zeros_like(gates)

    with bar(1, "", True) as progress, pytest.raises(MechheadsError) as error:
        descend(slope, torch.zeros(2, 1, 2), torch.zeros(2), (0.1, 0.1), FitSettings(), progress)
    assert "at update 7 the loss of 1 of 2 fits is not finite. Lower --rates" in str(error.value)


def test_the_progress_bar_shows_both_pulls_apart():
    pull, means = torch.tensor([0.1, 0.1, -0.1]), torch.tensor([0.8, 1.0, 0.25])
    words = shown(torch.tensor([1.0, 2.0, 4.0]), means, pull)
    assert words == {"loss+": "1.500", "g+": "0.90", "loss-": "4.000", "g-": "0.25"}
    assert shown(means, means, torch.zeros(3)) == {"loss": "0.683", "g": "0.68"}


def test_seeds_together_are_seeds_alone(checkpoint):
    model = load(str(checkpoint("llama-gqa")), dtype="float64")
    prompts = random_pairs(model, 1, (8, 8, 8, 9, 9))
    three, one = (FitSettings(seeds=seeds, updates=25, batch=2) for seeds in (3, 1))
    together = fit_gates(model, prompts, three, quiet=True)
    split = fit_gates(model, prompts, three, budget=20, quiet=True)
    alone = fit_gates(model, prompts, one, quiet=True)
    for fit in ("free", "plus", "minus"):
        torch.testing.assert_close(
            getattr(together, fit), getattr(split, fit), rtol=1e-9, atol=1e-9
        )
        torch.testing.assert_close(
            getattr(together, fit)[:1], getattr(alone, fit), rtol=1e-9, atol=1e-9
        )
    assert not torch.allclose(together.free[0], together.free[1])


def test_movement_is_that_of_each_head_and_not_of_their_mean():
    """Half of the heads open while the others close: their mean gate stays at 0.5."""
    half = torch.tensor([[[1.0, -1.0]]])
    recipe = FitSettings(seeds=1, updates=40)
    rates = (0.02, 0.02)
    with bar(1, "", True) as progress:
        found = descend(
            lambda _, gates: (torch.zeros(1), half),
            half * 0,
            torch.zeros(1),
            rates,
            recipe,
            progress,
        )
    assert found.means[0, -1].item() == pytest.approx(0.5, abs=1e-4)
    assert found.moved.item() > 0.02


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"seeds": 0}, "--seeds takes 1 or more"),
        ({"updates": 0}, "--updates takes 1 or more"),
        ({"strength": 0.0}, "--lambda takes a finite number above 0, got 0.0"),
        ({"strength": math.inf}, "--lambda takes a finite number above 0, got inf"),
        ({"clip": -1.0}, "--clip takes a finite number above 0, got -1.0"),
        ({"clip": math.nan}, "--clip takes a finite number above 0, got nan"),
        ({"rates": (0.1, 0.0)}, "--rates takes the first and the last .* got 0.1,0.0"),
        ({"rates": (math.inf, 0.1)}, "--rates takes the first and the last .* got inf,0.1"),
        ({"pulled_rates": (0.1, math.nan)}, "--pulled-rates takes .* got 0.1,nan"),
        ({"batch": 0}, "--batch takes 1 or more, got 0"),
    ],
)
def test_wrong_settings_are_named(wrong, words):
    with pytest.raises(MechheadsError, match=words):
        FitSettings(**wrong).check()


def _descend(recipe: FitSettings, start: torch.Tensor, pull: torch.Tensor, slope: float) -> Any:
    """A fit whose loss is a straight line in every gate."""
    with bar(1, "", True) as progress:
        return descend(
            lambda _, gates: (torch.zeros(len(gates)), torch.full_like(gates, slope)),
            start,
            pull,
            (0.5, 0.1),
            recipe,
            progress,
        )


def _one_by_one(minibatches: Minibatches) -> list[Any]:
    return [batch for i in range(len(minibatches)) for batch in minibatches.cut(torch.tensor([i]))]
