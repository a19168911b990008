"""Prompts are added until the order of the heads is settled, and no longer."""

from typing import Any

import pytest
import torch

import circuits
import mechheads
import tasks
from circuits.certainty.stability import share_that_stays
from circuits.planning import enough_prompts
from circuits.planning.enough_prompts import FIRST, STAY, rank_until_settled
from mechheads import MechheadsError

WANTED: dict[str, Any] = {"scoring": {}, "size": 8, "threshold": 0.9, "signed": False}


@pytest.fixture(scope="module")
def mini():
    return mechheads.load("mini")


@pytest.fixture(scope="module")
def prompts(mini):
    return tasks.make("ioi", mini, n=72)


def noisy(noise):
    """A method: effects that fall evenly from head to head, and the same noise for each prompt."""

    def falling(model, prompts, metric):
        values = torch.linspace(1, 0, 32).repeat(len(prompts), 1)
        for i, pair in enumerate(prompts):
            seed = int.from_bytes(pair.clean.encode()[-40:], "little") % 2**31
            values[i] += noise * torch.randn(32, generator=torch.Generator().manual_seed(seed))
        return values.view(-1, 4, 8)

    return falling


def test_a_clear_order_is_settled_on_the_first_block(mini, prompts):
    found = rank_until_settled(mini, prompts, noisy(0.001), None, **WANTED)
    assert len(found.prompts) == len(found.effects.values) == FIRST
    assert found.effects.notes["stays"] == 1
    assert not found.note


def test_noise_takes_all_prompts_and_is_reported(mini, prompts):
    found = rank_until_settled(mini, prompts, noisy(5.0), None, **WANTED)
    assert len(found.effects.values) == len(prompts)
    assert found.effects.notes["settled"] is False
    assert "not settled after 72 prompts" in found.note


def test_prompts_are_doubled_only_while_too_few_heads_stay(mini, prompts):
    method = noisy(0.37)
    found = rank_until_settled(mini, prompts, method, None, **WANTED)
    n = len(found.prompts)
    assert FIRST < n < len(prompts)

    def staying(count):
        effects = mechheads.score_heads(mini, prompts.first(count), method)
        return share_that_stays(effects, WANTED["size"])

    assert staying(n // 2) < STAY <= staying(n)


def test_the_share_that_stays_is_what_drawing_prompts_gives(mini, prompts):
    effects = mechheads.score_heads(mini, prompts.first(16), noisy(0.37))
    values, generator = effects.values.flatten(1), torch.Generator().manual_seed(1)
    own = set(values.mean(0).abs().topk(8).indices.tolist())
    kept = []
    for _ in range(2000):
        drawn = values[torch.randint(16, (16,), generator=generator)]
        kept.append(len(own & set(drawn.mean(0).abs().topk(8).indices.tolist())) / 8)
    wanted = pytest.approx(sum(kept) / len(kept), abs=0.02)
    assert share_that_stays(effects, 8) == wanted


@pytest.mark.parametrize(
    ("replacement", "runs"), [("corrupt", [16, 16, 32]), ("mean", [16, 32, 64])]
)
def test_only_new_prompts_are_run_where_prompts_are_scored_alone(
    mini, prompts, replacement, runs, monkeypatch
):
    monkeypatch.setattr(enough_prompts, "STAY", 2.0)
    scored, score = [], enough_prompts.score_heads
    monkeypatch.setattr(
        enough_prompts,
        "score_heads",
        lambda model, some, *rest, **own: (
            scored.append(len(some)) or score(model, some, *rest, **own)
        ),
    )
    options = {"replacement": replacement, "quiet": True}
    given: dict[str, Any] = WANTED | {"scoring": options}
    found = rank_until_settled(mini, prompts.first(64), "patch", None, **given).effects
    assert scored == runs
    whole = mechheads.score_heads(mini, prompts.first(64), "patch", **options)
    torch.testing.assert_close(found.values, whole.values, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found.clean, whole.clean, atol=1e-4, rtol=1e-4)


def test_discover_judges_on_the_same_prompts_whatever_ranks(mini, prompts):
    ranking, judging = prompts.first(64).split_at(40)
    auto = circuits.discover(mini, ranking, judging, n="auto", method="attribution", quiet=True)
    used = auto.effects.notes["prompts"]
    fixed = circuits.discover(mini, ranking, judging, n=used, method="attribution", quiet=True)
    torch.testing.assert_close(auto.effects.values, fixed.effects.values, atol=1e-4, rtol=1e-4)
    assert auto.needed == fixed.needed
    assert auto.circuit.heads == fixed.circuit.heads
    assert auto.judged_on == fixed.judged_on


@pytest.mark.parametrize(("n", "message"), [("some", "or auto, got some"), (99, "only 36 prompts")])
def test_other_numbers_of_prompts_are_refused(mini, prompts, n, message):
    with pytest.raises(MechheadsError, match=message):
        circuits.discover(mini, prompts, n=n, quiet=True)
