"""Scoring methods compared: the numbers are those of discover, and the better method is ahead."""

import math
from dataclasses import replace
from typing import Any

import checkpoints
import pytest
import torch
from pairs import random_pairs
from scipy import stats

import circuits
import mechheads
import tasks
from circuits.circuit import Circuit
from circuits.leaderboard.board import Leaderboard
from circuits.leaderboard.experiment import random_orders
from circuits.leaderboard.rounds import LeftOut, Round
from circuits.leaderboard.standings import MEASURES, Estimate, mean_rank, ranks
from circuits.points import SHARES
from mechheads.engine.head_subsets import measure_subsets
from mechheads.errors import MechheadsError
from mechheads.scoring.registry import METHODS, register_method
from mechheads.scoring.statistics import resample, student

FEW = ["patch", "ig", "direct", "random"]


@pytest.fixture(scope="module")
def board():
    """A round of mini."""
    model = mechheads.load("mini")
    prompts = tasks.make("ioi", model, n=24, seed=5)
    return circuits.rank_methods(model, prompts, methods=FEW, draws=3, quiet=True)


@pytest.fixture
def methods(monkeypatch):
    """Methods that are registered here are forgotten."""
    monkeypatch.setattr(METHODS, "_items", dict(METHODS))


def value(found: Leaderboard, name: str, method: str) -> float:
    (one,) = found.rounds
    values = one.values(name)
    assert values is not None
    return values[one.methods.index(method)].item()


def mean(found: Leaderboard, name: str) -> Estimate:
    estimate = found.mean(name)
    assert estimate is not None
    return estimate


def rank(found: Leaderboard, name: str) -> Estimate:
    estimate = found.rank(name)
    assert estimate is not None
    return estimate


@pytest.mark.parametrize("method", ["patch", "ig", "direct"])
def test_the_numbers_are_those_of_discover_on_the_same_prompts(method, board):
    model = mechheads.load("mini")
    prompts = tasks.make("ioi", model, n=24, seed=5)
    found = circuits.discover(model, prompts, method=method, seed=5, quiet=True).headline
    for name in ("cpr", "cmd"):
        assert value(board, name, method) == pytest.approx(found[name], abs=1e-5)
    assert value(board, "needed", method) == found["needed"]
    assert value(board, "needed_share", method) == found["needed"] / 32


def test_a_method_can_be_compared_with_itself_with_other_options():
    model = mechheads.load("mini")
    prompts = tasks.make("ioi", model, n=16)
    names = ["ig:steps=1", "ig"]
    found = circuits.rank_methods(model, prompts, methods=names, draws=2, quiet=True)
    for method, options in zip(names, ({"steps": 1}, {}), strict=True):
        alone = circuits.discover(model, prompts, method="ig", options=options, quiet=True)
        for name in ("cpr", "cmd", "needed"):
            assert value(found, name, method) == pytest.approx(alone.headline[name], abs=1e-5)
    assert found.rounds[0].passes.tolist() == [1.5, 7.5]
    assert value(found, "cpr", "ig:steps=1") != value(found, "cpr", "ig")


def test_what_rankings_have_in_common_is_measured_once(monkeypatch):
    measured = []

    def spy(model, prompts, keep, *args, **options):
        measured.extend(mask.numpy().tobytes() for mask in keep.unique(dim=0))
        return measure_subsets(model, prompts, keep, *args, **options)

    monkeypatch.setattr("mechheads.engine.subset_table.measure_subsets", spy)
    model = mechheads.load("mini")
    prompts = tasks.make("ioi", model, n=8)
    methods = ["direct", "ig", "ig:steps=5", "random"]
    found = circuits.rank_methods(model, prompts, methods=methods, draws=2, quiet=True)
    assert len(set(measured)) == len(measured)
    # Two different rankings of 32 heads with two orders each, and two random ones.
    assert len(measured) < 2 * (33 + 6) + 2 * 14
    assert value(found, "cmd", "ig") == value(found, "cmd", "ig:steps=5")


def test_of_many_heads_the_numbers_are_those_of_discover_at_its_points(tmp_path):
    model = mechheads.load(
        str(checkpoints.write(tmp_path, "gpt2", n_embd=72, n_head=24, n_layer=3))
    )
    prompts = random_pairs(model, 2, (8,) * 16)
    given = {"threshold": 0.7, "quiet": True}
    found = circuits.rank_methods(model, prompts, methods=["direct", "random"], **given)
    alone = circuits.discover(model, prompts, method="direct", **given)
    for name in ("cpr", "cmd", "needed"):
        assert value(found, name, "direct") == pytest.approx(alone.headline[name], abs=1e-5)


def test_random_rankings_are_judged_like_the_others(board):
    model = mechheads.load("mini")
    _, judging = tasks.make("ioi", model, n=24, seed=5).halves()
    curves = [
        circuits.explained_effect_curve(model, judging, order, draws=2, quiet=True)
        for order in random_orders((4, 8), 3, seed=5)
    ]
    cpr, cmd = (sum(getattr(c, n) for c in curves) / 3 for n in ("area_under", "area_from_1"))
    assert value(board, "cpr", "random") == pytest.approx(cpr, abs=1e-5)
    assert value(board, "cmd", "random") == pytest.approx(cmd, abs=1e-5)
    # Between the points, 4 heads apart, N is interpolated.
    count = sum(curve.needed() for curve in curves) / 3
    assert value(board, "needed", "random") == pytest.approx(count, abs=4)


@pytest.mark.parametrize(("threshold", "replacement"), [(0.3, "zero"), (1.0, "corrupt")])
def test_n_is_that_of_the_whole_curve_at_any_threshold(threshold, replacement):
    model = mechheads.load("mini")
    ranking, judging = tasks.make("math", model, n=16).halves()
    own = {"threshold": threshold, "replacement": replacement, "quiet": True}
    found = circuits.rank_methods(model, ranking, judging, methods=["direct", "attribution"], **own)
    for method in ("direct", "attribution"):
        effects = mechheads.score_heads(model, ranking, method, quiet=True)
        curve = circuits.explained_effect_curve(
            model, judging, effects, replacement=replacement, draws=2, quiet=True
        )
        assert value(found, "needed", method) == curve.needed(threshold)


def test_no_more_heads_are_needed_than_were_planted(planted):
    prompts = random_pairs(planted, 2, (8,) * 16)
    found = circuits.rank_methods(planted, prompts, methods=["random", "patch"], quiet=True)
    assert value(found, "needed", "patch") <= 2 < value(found, "needed", "random")
    assert found.standings("needed_share")["method"].tolist() == ["patch", "random"]
    assert found.rounds[0].auroc is None
    assert "auroc" not in found.headline["first"]


def test_exact_patching_is_ahead_of_chance_where_heads_are_known():
    model = mechheads.load("known/ioi")
    prompts = tasks.make("known/ioi", model, n=16)
    found = circuits.rank_methods(model, prompts, methods=["random", "patch"], quiet=True)
    for name in MEASURES:
        assert found.standings(name)["method"].tolist() == ["patch", "random"]
        assert rank(found, name).mean.tolist() == [2.0, 1.0]
    assert found.order == ["patch", "random"]


def test_auroc_is_1_where_a_method_sees_all_known_heads():
    model = mechheads.load("known/induction")
    prompts = tasks.make("known/induction", model, n=16)
    found = circuits.rank_methods(model, prompts, methods=FEW, quiet=True)
    assert value(found, "auroc", "patch") == value(found, "auroc", "ig") == 1
    # What a head writes to the logits says nothing of the previous-token head.
    truth = set(circuits.published("known_induction").heads)
    effects = mechheads.score_heads(model, prompts.halves()[0], "direct", quiet=True).scores.abs()
    pairs = [
        (effects[one] > effects[two]).item() + (effects[one] == effects[two]).item() / 2
        for one in truth
        for two in [(i, j) for i in range(len(effects)) for j in range(len(effects[0]))]
        if two not in truth
    ]
    assert value(found, "auroc", "direct") == pytest.approx(sum(pairs) / len(pairs)) != 1


def test_of_several_published_circuits_auroc_is_the_mean(monkeypatch):
    truths = [Circuit("one", "L0H0"), Circuit("other", "L3H4")]
    monkeypatch.setattr("circuits.leaderboard.experiment.published_for", lambda *_: truths)
    model = mechheads.load("mini")
    prompts = tasks.make("ioi", model, n=8)
    found = circuits.rank_methods(model, prompts, methods=["direct", "random"], quiet=True)
    effects = mechheads.score_heads(model, prompts.halves()[0], "direct", quiet=True).scores.abs()
    shares = [(effects < effects[head]).float().sum() / 31 for head in ((0, 0), (3, 4))]
    assert value(found, "auroc", "direct") == pytest.approx(float(sum(shares)) / 2)


def test_numbers_spread_over_prompts_as_those_of_resampled_prompts_do():
    model = mechheads.load("mini")
    ranking, judging = tasks.make("ioi", model, n=56, seed=5).split_at(8)
    effects = mechheads.score_heads(model, ranking, "direct", quiet=True)
    few = {"draws": 2, "points": 2, "quiet": True}
    curve = circuits.explained_effect_curve(model, judging, effects, **few)
    board = circuits.rank_methods(model, ranking, judging, methods=["direct", "random"], quiet=True)
    weights = resample(len(judging)) / len(judging)
    none, whole = (weights @ curve.values[k] for k in (0, -1))
    (one,) = board.rounds
    for name, values in (("cpr", curve.by_sign), ("cmd", curve.by_size)):
        assert values is not None
        f = (weights @ values.T - none[:, None]) / (whole - none)[:, None]
        areas = torch.trapezoid(f if name == "cpr" else (1 - f).abs(), torch.tensor(SHARES))
        rows = getattr(one, name)[0]
        error = rows.std(correction=0).item() / len(judging) ** 0.5
        assert areas.std().item() == pytest.approx(error, rel=0.15)


def made(model: str, seed: int, cpr: list[float], task: str = "t", **more) -> Round:
    """A round in which methods a, b, ... have these CPRs, and CMDs that are 1 less."""
    values = torch.tensor(cpr)[:, None] + torch.tensor([-0.1, 0.0, 0.0, 0.1])
    names = tuple("abcdef"[: len(cpr)])
    flat = torch.arange(1.0, len(cpr) + 1)
    given = {"methods": names, "cpr": values, "cmd": 1 - values, "needed": flat, "passes": flat}
    return Round(model, task, seed, "logit_diff", 8, 4, **{**given, "gap": torch.ones(4), **more})


def test_standings_of_rounds_made_by_hand():
    rows = [[0.5, 0.9, 0.1], [0.7, 0.9, 0.1], [0.6, 0.6, 0.2], [0.4, 0.8, 0.6]]
    rounds = [made(m, s, rows[2 * i + s]) for i, m in enumerate(("x", "y")) for s in (0, 1)]
    found = Leaderboard(tuple(rounds))
    frame: Any = found.standings("cpr")
    assert frame["method"].tolist() == ["b", "a", "c"]
    assert frame["mean"].tolist() == pytest.approx([0.8, 0.55, 0.25])
    assert frame["rank"].tolist() == pytest.approx([1.125, 2.125, 2.75])
    assert frame["behind"].tolist() == pytest.approx([0, -0.25, -0.55])
    # Over seeds: one mean per seed, of both pairs.
    assert frame["low"][1] == pytest.approx(0.55)
    seeds = stats.ttest_1samp([0.75, 0.85], 0).confidence_interval()
    assert (frame["low"][0], frame["high"][0]) == pytest.approx((seeds.low, seeds.high))
    behind = stats.ttest_1samp([-0.2, -0.3], 0).confidence_interval()
    ends = frame["behind_low"][1], frame["behind_high"][1]
    assert ends == pytest.approx((behind.low, behind.high))
    assert mean(found, "cpr").over == rank(found, "cpr").over == "seeds"
    assert found.order == ["b", "a", "c"]
    assert "over two seeds are very wide" in found.warnings[0]
    assert "by CPR b (mean rank 1.1, 95% 1.0 to 2.7; 2 pairs)" in found.sentence
    means: Any = found.by_pair("cpr").set_index("model")
    assert means.loc["y", ["a", "b", "c"]].tolist() == pytest.approx([0.5, 0.7, 0.4])


def test_ranks_of_three_pairs_have_an_interval_over_pairs():
    places = torch.tensor([[[1.0, 2.0]], [[1.0, 2.0]], [[2.0, 1.0]]])
    found = mean_rank(places)
    assert found.over == "pairs of model and task"
    wanted = stats.ttest_1samp([1, 1, 2], 0).confidence_interval()
    assert found.low[0].item() == pytest.approx(max(1, wanted.low))
    assert found.high[0].item() == pytest.approx(min(2, wanted.high))


def test_with_one_seed_intervals_are_over_prompts_and_said_to_be():
    found = Leaderboard((made("x", 0, [0.5, 0.9]), made("y", 0, [0.7, 0.9])))
    estimate = mean(found, "cpr")
    assert estimate.over == "judging prompts"
    half = found.rounds[0].half_widths("cpr")
    assert half is not None
    assert (estimate.high - estimate.mean).tolist() == pytest.approx(half.tolist())
    assert mean(found, "needed_share").over == ""
    assert math.isnan(mean(found, "needed_share").low[0])
    assert "over judging prompts" in found.warnings[0]
    assert len(found.warnings) == 1


def test_equal_methods_share_their_place():
    values = torch.tensor([0.2, 0.5, 0.5, 0.9])
    for measure in MEASURES.values():
        wanted = stats.rankdata(-values if measure.more_is_better else values)
        assert ranks(values, measure).tolist() == wanted.tolist()


def test_the_interval_of_a_few_means_is_students():
    values = torch.tensor([[1.0, 5.0], [2.0, 5.0], [4.0, 5.0]])
    wanted = stats.ttest_1samp(values[:, 0].numpy(), 0).confidence_interval()
    low, high = student(values)
    assert (low[0].item(), high[0].item()) == pytest.approx((wanted.low, wanted.high))
    assert (low[1], high[1]) == (5, 5)
    assert torch.stack(student(values[:1])).isnan().all()


def test_a_method_that_fails_is_left_out_and_its_pair_has_no_standings(methods, planted):
    def broken(model, prompts, metric):
        raise MechheadsError("It cannot.")

    register_method("broken")(broken)
    prompts = random_pairs(planted, 2, (8,) * 16)
    found = circuits.rank_methods(
        planted, prompts, methods=["patch", "broken", "random"], quiet=True
    )
    assert found.methods == ("patch", "random")
    (warning,) = [words for words in found.warnings if "broken" in words]
    assert warning == "Left out: broken on gpt2, random names (seed 0): It cannot."
    whole = Leaderboard((made("x", 0, [0.5, 0.9, 0.1]), made("y", 0, [0.7, 0.9])))
    assert list(whole.complete("cpr")) == [("x", "t")]
    assert Leaderboard(whole.rounds[1:]).mean("auroc") is None
    with pytest.raises(MechheadsError, match=r"^It cannot\.$"):
        circuits.rank_methods(planted, prompts, methods=["broken", "random"], quiet=True)


def test_boards_are_added_and_come_back_as_they_were(board, tmp_path):
    other = Leaderboard(
        (made("x", 0, [0.5, 0.9]),), draws=3, left_out=(LeftOut("x", "u", 0, "no", "a"),)
    )
    whole = board + other
    assert [r.model for r in whole.rounds] == ["mini", "x"]
    again = Leaderboard.load(whole.save(tmp_path))
    assert again.frame().equals(whole.frame())
    assert again.warnings == whole.warnings
    assert "No pair of model and task has every method" in again.sentence
    assert again.report(tmp_path).is_file()
    with pytest.raises(MechheadsError, match="ioi on mini with seed 5 is in both"):
        _ = board + board
    with pytest.raises(MechheadsError, match=r"has threshold 0.9, the other 0.5"):
        _ = board + replace(other, threshold=0.5)


def test_an_effect_that_may_be_chance_is_named():
    chance = made("x", 0, [0.5, 0.9], gap=torch.tensor([1.0, -1.0, 1.0, -0.9]))
    found = Leaderboard((chance, made("x", 1, [0.5, 0.9])))
    assert found.warnings[0].startswith("x, t (seed 0): the effect to explain may be 0")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"methods": ["patch"]}, "two or more different methods, got patch"),
        ({"methods": ["patch", "patch"]}, "two or more different"),
        ({"methods": ["patch", "atq"]}, "Did you mean 'atp'"),
        ({"draws": 1}, "--draws takes 2 or more"),
        ({"threshold": 0.0}, "threshold"),
        ({"metric": "logit"}, "Unknown metric"),
        ({"replacement": "noise"}, "noise"),
    ],
)
def test_wrong_input_is_named(wrong, words, planted):
    with pytest.raises(MechheadsError, match=words):
        circuits.rank_methods(planted, random_pairs(planted, 2, (8,) * 8), quiet=True, **wrong)
