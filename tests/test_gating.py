"""Causal head gating: fits, scores, roles, ablation curves, contrasts."""

import math
from typing import Any

import pytest
import torch
from pairs import random_pairs

from mechheads import models
from mechheads.batches import token_ids
from mechheads.engine import Plain, Replace
from mechheads.errors import MechheadsError
from mechheads.gating import Gating, Recipe, fit_gates
from mechheads.gating.ablation import ablate, grid, masks
from mechheads.gating.contrast import FLOOR, Side, contrast
from mechheads.gating.fitting import descend, first_logits, make_course, slope
from mechheads.gating.roles import Agreement, agreement, unfinished
from mechheads.patching import patch
from mechheads.progress import bar
from mechheads.prompts import Pair, Prompts

HELPS, HARMS = (0, 1), (1, 2)


@pytest.fixture(scope="module")
def planted_roles(checkpoint) -> Any:
    """L0H1 always writes the token " Mary", L1H2 takes it away, no other head writes."""
    model: Any = models.load(str(checkpoint("gpt2")))
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


def test_open_gates_are_the_model_bit_for_bit(tiny):
    prompts = random_pairs(tiny, 1, (8, 8))
    course = make_course(tiny, prompts, 8, 0)
    tokens = course.lessons[0].batch.clean
    with torch.no_grad():
        _, cache = tiny.run_with_cache(tokens)
    engine = Plain(tiny)
    ones = torch.ones(2, tiny.cfg.n_layers, tiny.cfg.n_heads)
    end = engine.resume(engine.remember(tokens, 0, 1), Replace(ones))
    last = cache[f"blocks.{tiny.cfg.n_layers - 1}.hook_resid_post"][:, -1:]
    for variant in end:
        assert torch.equal(variant, last)


@pytest.mark.parametrize("tokens", [1, 3])
def test_the_loss_is_the_targets_negative_log_probability_per_token(tiny, tokens):
    prompts = random_pairs(tiny, 2, (7, 9, 9), tokens=tokens)
    course = make_course(tiny, prompts, 2, 0)
    torch.manual_seed(1)
    gates = torch.rand(2, tiny.cfg.n_layers, tiny.cfg.n_heads)
    for lesson in course.lessons:
        found = course.nll_of(lesson, gates)
        for variant in range(2):
            hooks = [
                (
                    f"blocks.{layer}.attn.hook_z",
                    lambda z, hook, g=gates[variant, layer]: z * g[:, None],
                )
                for layer in range(tiny.cfg.n_layers)
            ]
            for column, pair in enumerate(lesson.batch.pairs.tolist()):
                text = prompts.pairs[pair]
                start = len(token_ids(tiny, text.clean))
                whole = torch.tensor([token_ids(tiny, text.clean + text.answers[0])])
                logits = tiny.run_with_hooks(whole, fwd_hooks=hooks).log_softmax(-1)
                target = whole[0, start:]
                said = logits[0, start - 1 : -1].gather(-1, target[:, None])[:, 0]
                assert len(target) == tokens
                assert found[variant, column].item() == pytest.approx(-said.mean().item(), abs=1e-4)


def test_gradients_are_those_of_finite_differences(checkpoint):
    model = models.load(str(checkpoint("gpt2")), dtype="float64")
    course = make_course(model, random_pairs(model, 1, (8, 8, 8)), 3, 0)
    torch.manual_seed(0)
    logits = torch.randn(2, model.cfg.n_layers, model.cfg.n_heads, dtype=torch.float64)
    pull = torch.tensor([0.3, -0.2], dtype=torch.float64)
    gradient, _ = slope(course.nll, 0, logits, pull, 4.0)
    heads = model.cfg.n_layers * model.cfg.n_heads

    def objective(at: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return course.nll(0, at.sigmoid()) - pull * at.clamp(-4, 4).sum((1, 2)) / heads

    for place in ((0, 0, 1), (0, 1, 2), (1, 1, 3)):
        step = torch.zeros_like(logits)
        step[place] = 1e-5
        slopes = (objective(logits + step) - objective(logits - step)) / 2e-5
        assert gradient[place].item() == pytest.approx(slopes[place[0]].item(), rel=1e-4, abs=1e-8)


def test_the_pull_alone_ends_at_the_clip_and_no_further():
    recipe = Recipe(seeds=3, updates=300)
    logits = first_logits(recipe, (2, 4))
    assert (logits.abs() < 4).any()

    def nothing(update: int, gates: torch.Tensor) -> torch.Tensor:
        return 0.0 * gates.sum((1, 2))

    with bar(1, "Updates", True) as progress:
        for pull, end in ((0.1, 4.0), (-0.1, -4.0)):
            found, _ = descend(
                nothing, logits, torch.full((3,), pull), (0.5, 0.1), recipe, 2, progress
            )
            assert torch.equal(found, torch.full_like(found, end))


def test_planted_heads_get_their_roles_with_every_seed(planted_roles, marys):
    found = fit_gates(planted_roles, marys, Recipe(seeds=4, updates=120, batch=4), quiet=True)
    for layer in range(planted_roles.cfg.n_layers):
        for head in range(planted_roles.cfg.n_heads):
            role = {HELPS: "facilitation", HARMS: "interference"}.get((layer, head), "irrelevance")
            for name in ("facilitation", "irrelevance", "interference"):
                assert found.has(name)[:, layer, head].all() == (name == role)
                assert found.has(name)[:, layer, head].any() == (name == role)
    table = found.role_frame().set_index("role")
    assert table.loc["facilitating", "always"] == table.loc["facilitating", "any seed"] == 1
    assert found.role_of(*HELPS) == "facilitating"
    assert found.kept("minus") == [HELPS]
    assert HARMS not in found.kept("plus")
    assert len(found.kept("plus")) == planted_roles.cfg.n_layers * planted_roles.cfg.n_heads - 1


def test_ablation_curves_of_planted_heads_have_the_expected_shapes(planted_roles, marys):
    found = fit_gates(planted_roles, marys, Recipe(seeds=3, updates=120, batch=4), quiet=True)
    curves = ablate(planted_roles, found, marys, grid(8, 50, None), quiet=True)
    assert curves.ks == tuple(range(9))
    for order in curves.orders:
        assert torch.equal(curves.values[curves.orders.index(order), :, 0], torch.zeros(3))
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
    course = make_course(tiny, prompts, 2, 0)
    base, score = found.plus[1], found.interference[1]
    shut, opened = base.clone().flatten(), base.clone().flatten()
    top = score.flatten().topk(3).indices
    shut[top], opened[top] = 0.0, 1.0
    both = torch.stack([shut, opened]).view(2, 2, 4)
    (lesson,) = course.lessons
    said = -(course.nll_of(lesson, both) * 2).mean(1)
    assert curves.values[2, 1, 1].item() == pytest.approx((said[0] - said[1]).item(), abs=1e-4)


def test_masks_shut_and_open_the_first_heads():
    base = torch.tensor([[0.9, 0.2], [0.6, 0.4]])
    made = masks(base, torch.tensor([[0.1, 0.8], [0.3, 0.9]]), (0, 1, 3))
    assert torch.equal(made[0, 0], base)
    assert torch.equal(made[1, 0], base)
    torch.testing.assert_close(made[0, 1], torch.tensor([[0.9, 0.2], [0.6, 0.0]]))
    torch.testing.assert_close(made[1, 2], torch.tensor([[0.9, 1.0], [1.0, 1.0]]))


def test_scores_are_the_papers():
    found = _gating(torch.tensor([[[0.9, 0.2, 0.7]]]), torch.tensor([[[0.8, 0.1, 0.2]]]))
    assert torch.equal(found.facilitation, found.minus)
    torch.testing.assert_close(found.irrelevance, torch.tensor([[[0.9 * 0.2, 0.18, 0.7 * 0.8]]]))
    torch.testing.assert_close(found.interference, torch.tensor([[[0.1, 0.8, 0.3]]]))
    assert found.shares() == pytest.approx(
        {"facilitation": 1 / 3, "irrelevance": 1 / 3, "interference": 1 / 3}
    )


def test_seeds_together_are_seeds_alone(checkpoint):
    model = models.load(str(checkpoint("llama-gqa")), dtype="float64")
    prompts = random_pairs(model, 1, (8, 8, 8, 9, 9))
    three, one = (Recipe(seeds=seeds, updates=25, batch=2) for seeds in (3, 1))
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
    again = Gating.load(found.save(tmp_path / "gating.safetensors"))
    assert torch.equal(again.plus, found.plus)
    assert again.frame().equals(found.frame())
    columns = ["seed", "layer", "head", "g_plus", "g_minus"]
    assert found.frame().columns.tolist() == [
        *columns,
        "facilitation",
        "irrelevance",
        "interference",
    ]


def test_agreement_with_patching(planted_roles, marys):
    found = fit_gates(planted_roles, marys, Recipe(seeds=3, updates=100, batch=4), quiet=True)
    effects = patch(planted_roles, marys, "logprob", replacement="zero", quiet=True)
    agreed = agreement(found, effects)
    assert agreed.significant == 1
    assert math.isnan(agreed.t)  # one head is no group
    assert agreed.correlation > 0
    assert "not defined" in " ".join(agreed.table.values())
    assert "t = 2.00" in " ".join(Agreement(0.5, 0.1, 3, 2.0, 0.04).table.values())


def test_fits_that_have_not_ended_are_named():
    flat = torch.full((2, 100), 0.2)
    assert unfinished("free", flat, flat, 0.2) is None
    falling = torch.linspace(1.0, 0.2, 100).repeat(2, 1)
    assert "still fell" in str(unfinished("free", falling, flat, 0.3))
    assert "worse than none" in str(unfinished("free", flat + 1, flat, 0.2))
    assert "plus fit has not converged" in str(unfinished("plus", flat, falling, 0.2))
    assert unfinished("minus", falling, flat, 0.2) is None
    noisy = 0.2 + 0.2 * torch.rand(2, 100, generator=torch.Generator().manual_seed(0))
    assert unfinished("free", noisy, flat, 0.3) is None


def test_contrast_keeps_one_answer_and_loses_the_other(checkpoint):
    """Two heads write one answer each, chosen by the prompt's last token being there or not."""
    model: Any = models.load(str(checkpoint("gpt2")))
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
    recipe = Recipe(seeds=2, updates=80, batch=3)
    for retain, forget, kept, lost in (
        (sides[0], sides[1], (0, 0), (1, 3)),
        (sides[1], sides[0], (1, 3), (0, 0)),
    ):
        trial = contrast(model, retain, forget, recipe, quiet=True)
        assert (trial.gates[(slice(None), *kept)] > 0.9).all()
        assert (trial.gates[(slice(None), *lost)] < 0.1).all()
        assert (trial.after[0] == 1).all()
        assert (trial.after[1] == 0).all()
    assert FLOOR == -5


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"seeds": 0}, "--seeds takes 1 or more"),
        ({"updates": 0}, "--updates takes 1 or more"),
        ({"strength": 0.0}, "--lambda takes more than 0"),
        ({"clip": -1.0}, "--clip takes more than 0"),
        ({"rates": (0.1, 0.0)}, "--rates takes the first and the last"),
        ({"batch": 0}, "--batch takes 1 or more"),
    ],
)
def test_wrong_recipes_are_named(wrong, words):
    with pytest.raises(MechheadsError, match=words):
        Recipe(**wrong).check()


def test_grids_of_k():
    assert grid(32, 50, None) == tuple(range(33))
    assert grid(270, 50, 6) == (0, 10, 20, 30, 40, 50)
    assert grid(4, 50, 6) == (0, 1, 2, 3, 4)
    for wrong in ((0, None), (5, 1)):
        with pytest.raises(MechheadsError):
            grid(32, *wrong)


def _gating(plus: torch.Tensor, minus: torch.Tensor) -> Gating:
    trace = torch.zeros(3, len(plus), 5)
    return Gating("t", "m", plus, plus, minus, trace, trace, 0.0)
