"""One factor per query, or not: by hand, with noise, and in models where the answer is known."""

import math
from typing import Any

import pytest
import torch

from mechheads.filler.insertion import Inserted, make
from mechheads.filler.mechanism import late_weights, mechanism_of
from mechheads.models.load import load
from mechheads.prompts import Question


def scored(
    seed: int, prompts: int = 8, extra: int = 4
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Causal weights of 6 queries on 10 keys, the same with more keys, and what those take."""
    torch.manual_seed(seed)
    scores = torch.randn(prompts, 6, 10).double()
    hidden = torch.ones(6, 10).triu(5).bool()
    scores = scores.masked_fill(hidden, -torch.inf)
    more = torch.cat([scores, torch.randn(prompts, 6, extra).double()], dim=2).softmax(2)
    return scores.softmax(2), more[..., :10], more[..., 10:].sum(2)


@pytest.mark.parametrize("sink", [False, True])
def test_keys_that_only_join_the_softmax_leave_one_factor_per_query(sink):
    before, now, mass = scored(0)
    found = mechanism_of("mless", before, now, mass, sink=sink)
    assert found.p_value == 1.0
    assert found.factor == pytest.approx(1 - found.mass, abs=1e-12)
    assert found.spread == pytest.approx(0, abs=1e-6)


def test_keys_with_factors_of_their_own_are_noticed_and_noise_is_not():
    before, now, mass = scored(1)
    prompt = torch.linspace(0.5, 1.5, 8).double()[:, None, None]
    keys = torch.linspace(0.7, 1.3, 10).double()
    other = mechanism_of("mless", before, now * prompt * keys, mass)
    assert other.p_value < 1e-4
    # By hand: the spread of one query is that of log(keys), weighted by attention.
    one = mechanism_of("mless", before[:1, 5:], now[:1, 5:] * keys, mass[:1, 5:])
    weights, logs = before[0, 5], keys.log()
    middle = (weights * logs).sum()
    assert one.spread == pytest.approx((weights * (logs - middle) ** 2).sum().sqrt().item())
    assert math.isnan(one.p_value)
    noisy = mechanism_of("mless", before, now * (1 + 0.1 * torch.rand_like(now)), mass)
    assert noisy.p_value > 0.01


@pytest.fixture
def placeless(checkpoint) -> tuple[Any, list[Inserted], list[Inserted]]:
    """A tiny model without positions, prompts for it, and the same with a run."""
    model: Any = load(str(checkpoint("gpt2")))
    with torch.no_grad():
        model.pos_embed.W_pos.zero_()
    names = (("Tom", "Anna"), ("Anna", "James"), ("John", "Tom"), ("James", "John"))
    asked = [Question(f"Then {a} and {b} gave", ("Mary",), "f") for a, b in names]
    plain, made = (
        make(model, asked, c, filler=",", length=6, place="start") for c in ("none", "mless")
    )
    assert made[0].tokens == 6
    return model, plain, made


def test_a_run_without_values_scales_the_first_layer_by_its_factor(placeless):
    model, plain, made = placeless
    cut, run = made[0].cut, made[0].run
    before, _ = late_weights(model, plain, (0, 2), cut)
    now, mass = late_weights(model, made, (0, 2), cut)
    found = mechanism_of("mless", before, now, mass)
    assert 0 < found.mass < 1
    assert found.factor == pytest.approx(1 - found.mass, abs=1e-6)
    assert found.p_value == 1.0
    kept = []

    def empty(v, hook):
        if v.shape[1] > len(plain[0].ids):
            v[:, cut : cut + run] = 0
        return v

    for prompt in (plain[0], made[0]):
        model.run_with_hooks(
            torch.tensor([prompt.ids]),
            fwd_hooks=[
                ("blocks.0.attn.hook_v", empty),
                ("blocks.0.attn.hook_z", lambda z, hook: kept.append(z[0, :, 2])),
            ],
        )
    wanted = kept[0][cut:] * (1 - mass[0])[:, None].float()
    torch.testing.assert_close(kept[1][cut + run :], wanted, rtol=1e-4, atol=1e-6)


def test_keys_that_are_never_seen_change_nothing(placeless):
    """With the run's scores at minus infinity, all is as before in every layer."""
    model, plain, made = placeless
    cut, run = made[0].cut, made[0].run

    def hide(scores, hook):
        if scores.shape[-1] > cut + run:
            scores[:, :, cut + run :, cut : cut + run] = -torch.inf
        return scores

    for layer in range(model.cfg.n_layers):
        model.add_hook(f"blocks.{layer}.attn.hook_attn_scores", hide, is_permanent=True)
    hidden, mass = late_weights(model, made, (1, 2), cut)
    same, _ = late_weights(model, plain, (1, 2), cut)
    ends = [model(torch.tensor([p.ids]))[0, -1] for p in (plain[0], made[0])]
    assert mass.abs().max() == 0
    torch.testing.assert_close(hidden, same, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(*ends, rtol=1e-4, atol=1e-5)
    found = mechanism_of("mless", same, hidden, mass)
    assert found.factor == pytest.approx(1, abs=1e-5)
    assert found.p_value == 1.0
