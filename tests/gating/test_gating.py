"""Causal head gating: fits, scores, roles, ablation curves, contrasts."""

import math
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from pairs import random_pairs

from mechheads.engine.cached_run import CachedRun
from mechheads.engine.direct import DirectEngine
from mechheads.engine.hooked import HookedEngine
from mechheads.engine.interventions import Replace
from mechheads.engine.select import frozen
from mechheads.errors import MechheadsError
from mechheads.gating import Gates, FitSettings, fit_gates
from mechheads.gating.ablation import Ablation, ablate, grid, masks
from mechheads.gating.contrast import FLOOR, Side, contrast, contrast_loss
from mechheads.gating.figures import LINES, draw_ablations
from mechheads.models.hooks import embed
from mechheads.models.load import load
from mechheads.progress import bar
from mechheads.prompts import Pair, Prompts
from mechheads.prompts.batches import token_ids
from mechheads.scoring.activation_patching import patch
from mechheads.scoring.effects import HeadEffects
from mechheads.scoring.gate_fitting import (
    Minibatches,
    descend,
    first_logits,
    make_minibatches,
    pull_slope,
    row_tokens,
    shown,
)
from mechheads.scoring.gate_roles import LIMIT, ROLES, Agreement, agreement, unfinished

HELPS, HARMS = (0, 1), (1, 2)


@pytest.fixture(scope="module")
def planted_roles(checkpoint) -> Any:
    """L0H1 always writes the token " Mary", L1H2 takes it away, no other head writes."""
    model: Any = load(str(checkpoint("gpt2")))
    token = model.tokenizer.encode(" Mary")[0]
    with torch.no_grad():
        for block in model.blocks:
            block.mlp.W_out.zero_()
            block.mlp.b_out.zero_()
            block.attn.W_O.zero_()
            block.attn.b_O.zero_()
        word = model.W_U[:, token] - model.W_U.mean(1)
        for (layer, head), size in ((HELPS, 4.0), (HARMS, -3.0)):
            attention = model.blocks[layer].attn
            attention.W_V[head].zero_()
            attention.b_V[head].zero_()
            attention.b_V[head, 0] = 1.0
            attention.W_O[head, 0] = size * word / word.norm()
    return model


@pytest.fixture(scope="module")
def marys() -> Prompts:
    """Prompts of two lengths that all have the same answer."""
    names = ("Tom", "Anna", "James", "John")
    pairs = [
        Pair(f"Then {a} and {b} gave", f"Then {b} and {a} gave", (" Mary",), (" Tom",))
        for a in names
        for b in names
        if a != b
    ]
    pairs += [
        Pair(f"When {a} met {b} they went to", f"When {b} met {a} they went to", (" Mary",), ())
        for a, b in (("Tom", "Anna"), ("John", "Anna"))
    ]
    return Prompts("marys", "logprob", tuple(pairs))


@pytest.fixture(scope="module")
def found(planted_roles, marys) -> Gates:
    """Gates of the planted model."""
    return fit_gates(planted_roles, marys, FitSettings(seeds=4, updates=120, batch=4), quiet=True)


@pytest.mark.parametrize("kind", [HookedEngine, DirectEngine])
def test_open_gates_are_the_model(tiny, kind):
    """Bit for bit with the model's own blocks, to 1e-5 where they are computed anew."""
    tokens = make_minibatches(tiny, random_pairs(tiny, 1, (8, 8)), FitSettings(batch=2)).every[0].clean
    entering = embed(tiny, tokens)
    gates = torch.rand(2, tiny.cfg.n_layers, tiny.cfg.n_heads)
    gates[0] = 1.0
    run = CachedRun(0, 1, [entering], [entering[:, :, None]])
    opened, changed = kind(tiny).begin(run, entering, Replace(gates))
    _, cache = tiny.run_with_cache(torch.cat([tokens, tokens]))
    end = cache[f"blocks.{tiny.cfg.n_layers - 1}.hook_resid_post"][: len(tokens), -1:]
    if kind is HookedEngine:
        assert torch.equal(opened, end)
    torch.testing.assert_close(opened, end, rtol=1e-5, atol=1e-5)
    assert (changed - end).abs().max() > 1e-3


def test_an_update_has_as_many_prompts_as_the_batch_says_whatever_their_lengths(tiny):
    prompts = random_pairs(tiny, 1, (7, 7, 8, 9, 9, 9), tokens=2)
    course = make_minibatches(tiny, prompts, FitSettings(batch=4))
    drawn = [[p for b in course.drawn(i) for p in b.pairs.tolist()] for i in range(60)]
    assert all(len(set(some)) == len(some) == 4 for some in drawn)
    assert all(len({b.length for b in course.drawn(i)}) > 1 for i in range(60))
    counts = torch.tensor(drawn).flatten().bincount()
    assert len(counts) == 6
    assert counts.min() > 20  # 40 of each are expected
    assert drawn == [[p for b in course.drawn(i) for p in b.pairs.tolist()] for i in range(60)]


def test_the_loss_of_an_update_is_the_mean_over_its_prompts(tiny):
    prompts = random_pairs(tiny, 1, (7, 8, 8, 8, 9), tokens=2)
    gates = torch.rand(3, tiny.cfg.n_layers, tiny.cfg.n_heads)
    course = make_minibatches(tiny, prompts, FitSettings(batch=5))
    alone = torch.stack([course.nll_of(b, gates) for b in _one_by_one(course)]).mean((0, 2))
    torch.testing.assert_close(course.nll(gates), alone)
    torch.testing.assert_close(course.slope(0, gates)[0], alone)
    tight = replace(course, budget=1)
    for found, wanted in zip(tight.slope(0, gates), course.slope(0, gates), strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("budget", [1, 40, 200, 5000])
def test_no_pass_holds_more_than_the_budget_unless_one_prompt_does(tiny, budget, monkeypatch):
    prompts = random_pairs(tiny, 1, (7, 8, 8, 8, 9, 30), tokens=3)
    course = make_minibatches(tiny, prompts, FitSettings(batch=6), budget)
    done = torch.zeros(5)
    for batch, some in course.passes(course.drawn(0), 5):
        variants = len(range(5)[some])
        done[some] += len(batch.pairs)
        held = variants * len(batch.clean) * row_tokens(tiny, batch)
        assert held <= budget or (variants == 1 and len(batch.pairs) == 1)
    assert (done == 6).all()
    (batch,) = course.drawn(0)[-1:]
    logits = 3 * tiny.cfg.d_vocab_out / 4096
    assert row_tokens(tiny, batch) == math.ceil(32 + logits)
    monkeypatch.setattr(tiny.cfg, "n_layers", 30)  # every layer is remembered, six hold one token
    assert row_tokens(tiny, batch) == math.ceil(5 * 32 + logits)


@pytest.mark.parametrize("tokens", [1, 3])
def test_the_loss_is_the_targets_negative_log_probability_per_token(tiny, tokens):
    prompts = random_pairs(tiny, 2, (7, 9, 9), tokens=tokens)
    course = make_minibatches(tiny, prompts, FitSettings(batch=2))
    torch.manual_seed(1)
    gates = torch.rand(2, tiny.cfg.n_layers, tiny.cfg.n_heads)
    for batch in course.every:
        found = course.nll_of(batch, gates)
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
                start = len(token_ids(tiny, text.clean))
                whole = torch.tensor([token_ids(tiny, text.clean + text.answers[0])])
                logits = tiny.run_with_hooks(whole, fwd_hooks=hooks).log_softmax(-1)
                target = whole[0, start:]
                said = logits[0, start - 1 : -1].gather(-1, target[:, None])[:, 0]
                assert len(target) == tokens
                assert found[variant, column].item() == pytest.approx(-said.mean().item(), abs=1e-4)


def test_gradients_are_those_of_finite_differences(checkpoint):
    model = load(str(checkpoint("gpt2")), dtype="float64")
    course = make_minibatches(model, random_pairs(model, 1, (8, 9, 9)), FitSettings(batch=3))
    torch.manual_seed(0)
    logits = torch.randn(2, model.cfg.n_layers, model.cfg.n_heads, dtype=torch.float64)
    logits[0, 1, 2] = 4.5  # where the pull has ended
    pull = torch.tensor([0.3, -0.2], dtype=torch.float64)
    gates = logits.sigmoid()
    gradient = course.slope(0, gates)[1] * gates * (1 - gates) + pull_slope(logits, pull, 4.0)
    heads = model.cfg.n_layers * model.cfg.n_heads

    def objective(at: torch.Tensor) -> torch.Tensor:
        return course.slope(0, at.sigmoid())[0] - pull * at.clamp(-4, 4).sum((1, 2)) / heads

    for place in ((0, 0, 1), (0, 1, 2), (1, 1, 3)):
        step = torch.zeros_like(logits)
        step[place] = 1e-5
        slopes = (objective(logits + step) - objective(logits - step)) / 2e-5
        assert gradient[place].item() == pytest.approx(slopes[place[0]].item(), rel=1e-4, abs=1e-8)


def test_a_fit_remembers_nothing_for_gradients_of_weights(tiny, monkeypatch):
    course = make_minibatches(tiny, random_pairs(tiny, 1, (9, 9, 9)), FitSettings(batch=3))
    gates = torch.rand(2, tiny.cfg.n_layers, tiny.cfg.n_heads)

    def remembered(work: Any) -> int:
        sizes: dict[int, int] = {}

        def pack(x: torch.Tensor) -> torch.Tensor:
            sizes[x.data_ptr()] = x.numel()
            return x

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            work()
        return sum(sizes.values())

    assert any(weight.requires_grad for weight in tiny.parameters())
    less = remembered(lambda: course.slope(0, gates))
    with monkeypatch.context() as patched:
        patched.setattr("mechheads.gating.fitting.frozen", lambda _: nullcontext())
        assert less < 0.85 * remembered(lambda: course.slope(0, gates))


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


def test_planted_heads_get_their_roles_with_every_seed(planted_roles, marys, found):
    for layer in range(planted_roles.cfg.n_layers):
        for head in range(planted_roles.cfg.n_heads):
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
    kept = make_minibatches(planted_roles, marys, FitSettings(batch=4))
    torch.testing.assert_close(found.nll[2], kept.nll(found.minus))
    assert (found.nll[1] < found.ungated).all()
    assert found.warnings == []


def test_ablation_curves_of_planted_heads_have_the_expected_shapes(planted_roles, marys, found):
    curves = ablate(planted_roles, found, marys, grid(8, 50, None), quiet=True)
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
    found = _gating(torch.rand(2, 2, 4), torch.rand(2, 2, 4))
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


def test_scores_are_the_papers():
    found = _gating(torch.tensor([[[0.9, 0.2, 0.7]]]), torch.tensor([[[0.8, 0.1, 0.2]]]))
    assert torch.equal(found.facilitation, found.minus)
    torch.testing.assert_close(found.irrelevance, torch.tensor([[[0.9 * 0.2, 0.18, 0.7 * 0.8]]]))
    torch.testing.assert_close(found.interference, torch.tensor([[[0.1, 0.8, 0.3]]]))
    assert found.shares() == pytest.approx(
        {"facilitation": 1 / 3, "irrelevance": 1 / 3, "interference": 1 / 3}
    )


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


def test_the_result_survives_saving(tmp_path):
    found = _gating(torch.rand(2, 2, 4), torch.rand(2, 2, 4))
    again = Gates.load(found.save(tmp_path / "gating.safetensors"))
    assert torch.equal(again.plus, found.plus)
    assert again.frame().equals(found.frame())
    columns = ["seed", "layer", "head", "g_plus", "g_minus"]
    assert found.frame().columns.tolist() == [
        *columns,
        "facilitation",
        "irrelevance",
        "interference",
    ]


def test_agreement_with_patching(planted_roles, marys, found):
    effects = patch(planted_roles, marys, "logprob", replacement="zero", quiet=True)
    agreed = agreement(found, effects)
    assert agreed.significant == 2  # the head that helps, and the one that harms
    assert agreed.correlation > 0
    assert "t = 2.00" in " ".join(Agreement(0.5, 0.1, 3, 2.0, 0.04).table.values())


def test_agreement_by_hand():
    """Significant heads (one helps, one harms): 0.9, 0.7, mean 0.8, variance 0.02; the others: 0.1,
    0.2, 0.3, mean 0.2, variance 0.01. t = 0.6 / sqrt(0.02 / 2 + 0.01 / 3).
    """
    facilitation = torch.tensor([[[0.9, 0.7, 0.1, 0.2, 0.3]]])
    noise = torch.tensor([0.1, -0.1, 0.1, -0.1])[:, None, None]
    effect = torch.tensor([[[5.0, -5.0, 0.0, 0.0, 0.0]]])
    values = effect + noise * torch.tensor([1.0, 1.0, 1.0, 2.0, 3.0])
    blank = torch.zeros(4)
    effects = HeadEffects("t", "m", "patch", "logprob", values, blank, blank)
    agreed = agreement(_gating(facilitation, facilitation), effects)
    assert agreed.significant == 2
    assert agreed.t == pytest.approx(0.6 / math.sqrt(0.02 / 2 + 0.01 / 3), rel=1e-5)
    assert 0 < agreed.t_p < 0.1
    assert agreed.headline["welch_t"] == agreed.t
    alone = agreement(_gating(facilitation, facilitation), replace(effects, values=values * 0))
    assert alone.significant == 0
    assert math.isnan(alone.t)
    assert "not defined" in " ".join(alone.table.values())


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
    assert len(_gating(torch.rand(2, 2, 4), torch.rand(2, 2, 4)).warnings) == 1


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


def test_the_contrastive_loss_stops_at_its_floor():
    """loss = kept + max(kept - lost, -5); only lost has a gradient through the second term."""
    kept = torch.tensor([1.0, 1.0], requires_grad=True)
    lost = torch.tensor([3.0, 7.0], requires_grad=True)
    loss = contrast_loss(kept, lost)
    assert loss.tolist() == [1.0 - 2.0, 1.0 - 5.0]
    loss.sum().backward()
    assert kept.grad is not None
    assert lost.grad is not None
    assert kept.grad.tolist() == [1.0, 1.0]
    assert lost.grad.tolist() == [-1.0, 0.0]
    assert FLOOR == -5


def test_the_grid_has_a_panel_per_task_and_model_and_rows_share_their_axis():
    cells = [
        Ablation(task, model, (0, 1, 2), torch.rand(3, 4, 3) - 0.5, 8, "4 seeds")
        for task in ("a", "b")
        for model in ("one", "two")
    ]
    figure: Any = draw_ablations(cells).to_dict()
    titles = [note["text"] for note in figure["layout"]["annotations"]]
    assert [title.split("<br>")[0] for title in titles] == [
        f"<b>{cell.task}</b>, {cell.model}" for cell in cells
    ]
    assert all("4 seeds, 8 held-out prompts" in title for title in titles)
    layout = figure["layout"]
    assert (layout["yaxis2"]["matches"], layout["yaxis4"]["matches"]) == ("y", "y3")
    assert "matches" not in layout["yaxis3"]
    curves = [trace for trace in figure["data"] if trace.get("name")]
    assert len(curves) == 4 * 3
    for curve, role in zip(curves, ROLES * 4, strict=True):
        assert curve["name"] == f"by {role}"
        assert (curve["line"]["color"], curve["line"]["dash"]) == LINES[role]
    assert len({line for line, _ in LINES.values()}) == len({d for _, d in LINES.values()}) == 3
    assert sum(curve["showlegend"] for curve in curves) == 3
    zeros = [shape for shape in layout["shapes"] if shape["y0"] == shape["y1"] == 0]
    assert [shape["yref"] for shape in zeros] == ["y", "y2", "y3", "y4"]


def test_contrast_keeps_one_answer_and_loses_the_other(checkpoint):
    """Two heads write one answer each, chosen by the prompt's last token being there or not."""
    model: Any = load(str(checkpoint("gpt2")))
    words = [model.tokenizer.encode(word)[0] for word in (" Mary", " John")]
    with torch.no_grad():
        for block in model.blocks:
            block.mlp.W_out.zero_()
            block.mlp.b_out.zero_()
            block.attn.W_O.zero_()
            block.attn.b_O.zero_()
        for (layer, head), token, size in (((0, 0), words[0], 4.0), ((1, 3), words[1], 4.0)):
            attention = model.blocks[layer].attn
            attention.W_V[head].zero_()
            attention.b_V[head].zero_()
            attention.b_V[head, 0] = 1.0
            word = model.W_U[:, token] - model.W_U.mean(1)
            attention.W_O[head, 0] = size * word / word.norm()
    sides = [
        Side(
            answer,
            *[
                Prompts(
                    "one",
                    "logprob",
                    tuple(
                        Pair(f"Then {a} gave", f"Then {b} gave", (f" {answer}",), ())
                        for a, b in (("Tom", "Anna"), ("Anna", "James"), ("James", "Tom"))
                    ),
                )
            ]
            * 2,
        )
        for answer in ("Mary", "John")
    ]
    recipe = FitSettings(seeds=2, updates=80, batch=3)
    for retain, forget, kept, lost in (
        (sides[0], sides[1], (0, 0), (1, 3)),
        (sides[1], sides[0], (1, 3), (0, 0)),
    ):
        trial = contrast(model, retain, forget, recipe, quiet=True)
        assert (trial.gates[(slice(None), *kept)] > 0.9).all()
        assert (trial.gates[(slice(None), *lost)] < 0.1).all()
        assert (trial.after[0] == 1).all()
        assert (trial.after[1] == 0).all()
        assert trial.warning is None


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
def test_wrong_recipes_are_named(wrong, words):
    with pytest.raises(MechheadsError, match=words):
        FitSettings(**wrong).check()


def test_grids_of_k():
    assert grid(32, 50, None) == tuple(range(33))
    assert grid(270, 50, 6) == (0, 10, 20, 30, 40, 50)
    assert grid(4, 50, 6) == (0, 1, 2, 3, 4)
    for wrong, words in (((0, None), "--k takes 1 or more"), ((5, 1), "--points takes 2 or more")):
        with pytest.raises(MechheadsError, match=words):
            grid(32, *wrong)


def _gating(plus: torch.Tensor, minus: torch.Tensor) -> Gates:
    trace, ends = torch.zeros(3, len(plus), 5), torch.zeros(3, len(plus))
    return Gates("t", "m", plus, plus, minus, trace, trace, ends, ends, 0.0, {"batch": 8})


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


def _one_by_one(course: Minibatches) -> list[Any]:
    return [batch for i in range(len(course)) for batch in course.cut(torch.tensor([i]))]
