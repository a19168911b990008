"""Curves measured at some k: N, its interval and the circuit are those of the whole curve."""

import itertools
from dataclasses import replace

import pytest
import torch

from circuits import curve as curves
from circuits.curve import explained_effect_curve
from circuits.measured import explained, needed, resampled_shares
from circuits.points import curve_points, mib_counts, points_to_add, random_points
from mechheads.errors import MechheadsError
from mechheads.scoring.statistics import ends

HEADS = 300


def rising(seed, prompts=12):
    """The metric per prompt of a ranking of which every head helps on every prompt."""
    generator = torch.Generator().manual_seed(seed)
    steps = torch.rand(HEADS, prompts, generator=generator) * torch.rand(
        HEADS, 1, generator=generator
    )
    steps *= torch.linspace(4, 0.1, HEADS)[:, None] ** 2
    return torch.cat([torch.zeros(1, prompts), steps.cumsum(0)])


def measure(whole, threshold, points="auto"):
    """What `explained_effect_curve` measures, of a curve that is known at every k."""
    values = {k: whole[k] for k in curve_points(HEADS, points)}
    while more := curves._more(values, threshold):
        assert not set(more) & set(values)
        values |= {k: whole[k] for k in more}
    return sorted(values)


@pytest.mark.parametrize("threshold", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("seed", range(8))
def test_where_f_only_rises_n_and_its_interval_are_those_of_the_whole_curve(seed, threshold):
    whole = rising(seed)
    at = measure(whole, threshold)
    assert len(at) < 100
    some = whole[at]
    for stays in (False, True):
        (n,) = needed(explained(some.mean(1))[None], threshold, at, stays=stays)
        assert [n] == needed(explained(whole.mean(1))[None], threshold, stays=stays).tolist()
    interval = ends(needed(resampled_shares(some), threshold, at))
    assert interval == ends(needed(resampled_shares(whole), threshold))


def test_n_is_exact_where_its_interval_is_wide_and_the_curve_dips_later():
    # Each prompt's share k / 300 to another power: N differs much between prompts.
    powers = torch.tensor([0.05, 0.1, 0.3, 0.6, 1.5, 3.0])
    whole = torch.linspace(0, 1, HEADS + 1)[:, None] ** powers
    whole[280:290] *= 0.8
    at = measure(whole, 0.9)
    (n,) = needed(explained(whole[at].mean(1))[None], 0.9, at).tolist()
    assert [n] == needed(explained(whole.mean(1))[None], 0.9).tolist()
    low, high = ends(needed(resampled_shares(whole), 0.9))
    assert low + 20 < n < high - 10
    assert n not in curve_points(HEADS)


def bumpy(bump):
    """A curve that reaches 0.9 at k = 200, and `bump` at k = 107 alone."""
    f = torch.linspace(0, 0.8, 200).tolist() + torch.linspace(0.9, 1, HEADS - 199).tolist()
    f[107] = bump
    return torch.tensor(f)[:, None].expand(-1, 12).contiguous()


def test_a_bump_between_the_points_of_a_curve_without_dips_is_missed():
    at = measure(bumpy(0.95), 0.9)
    assert 107 not in at  # nothing that was measured tells of it
    assert needed(explained(bumpy(0.95)[at].mean(1))[None], 0.9, at).tolist() == [200]


def test_gaps_near_the_threshold_are_measured_where_the_curve_dips():
    f = torch.cat([torch.linspace(0, 0.86, 16), torch.full((HEADS - 15,), 0.86)])
    f[5] = 0.1  # a dip of 0.15: f may reach 0.9 wherever it is above 0.75
    f[151], f[250:] = 0.93, 1.0
    whole = f[:, None].expand(-1, 8).contiguous()
    assert 151 not in curve_points(HEADS)
    at = measure(whole, 0.9)
    assert needed(explained(whole[at].mean(1))[None], 0.9, at).tolist() == [151]


def test_grids_are_dense_where_heads_are_few():
    assert curve_points(64) == list(range(65))
    assert curve_points(270, "all") == list(range(271))
    some = curve_points(270)
    assert set(range(17)) | set(mib_counts(270)) | {270} <= set(some)
    assert len(some) < 62
    assert max(b / a for a, b in itertools.pairwise(some[16:])) < 1.12
    assert len(curve_points(270, 12)) <= 12 + len(mib_counts(270)) + 1
    assert curve_points(270, "12") == curve_points(270, 12)
    assert curve_points(270, "9" * 30) == curve_points(270, "all")


def test_random_rankings_share_the_points_of_one():
    assert random_points(32, 33, 10) == [0, 8, 16, 24, 32]
    assert random_points(270, 60, 10) == [0, 90, 180, 270]
    assert random_points(8, 9, 50) == [0, 4, 8]


@pytest.mark.parametrize("points", [1, "some", "2.5", -3, ""])
def test_other_points_are_refused(points):
    with pytest.raises(MechheadsError, match="--points takes auto, all or a number from 2 on"):
        curve_points(8, points)


def test_nothing_is_added_to_a_curve_that_is_measured_everywhere():
    whole = rising(0)
    f, resampled = explained(whole.mean(1)), resampled_shares(whole)
    assert points_to_add(range(HEADS + 1), f, resampled, 0.9) == []


@pytest.mark.parametrize("points", [2, 4])
def test_a_model_measured_at_few_points_is_measured_closely_around_n(points, tiny):
    from pairs import random_pairs

    prompts = random_pairs(tiny, 2, (8,) * 12)
    ranking = [(layer, head) for layer in range(2) for head in range(4)]
    whole = explained_effect_curve(tiny, prompts, ranking, draws=2)
    some = explained_effect_curve(tiny, prompts, ranking, draws=2, points=points)
    torch.testing.assert_close(some.values, whole.values[list(some.at)])
    n = some.needed()
    assert n == min(k for k in some.at if whole.explained[k] >= 0.9)
    assert n - 1 in some.at
    assert some.area_under == pytest.approx(whole.area_under)
    assert some.frame()["k"].tolist() == list(some.at)
    assert some.explained_at(some.at[1]) == pytest.approx(float(whole.explained[some.at[1]]))


def test_a_threshold_that_may_be_reached_unseen_is_a_warning(tiny):
    from pairs import random_pairs

    curve = explained_effect_curve(
        tiny, random_pairs(tiny, 2, (8,) * 12), [(i, h) for i in range(2) for h in range(4)]
    )
    assert not [w for w in curve.warnings if "--points all" in w]
    f = [0.0, 0.7, 0.4, 0.85, 1.0]
    values = torch.tensor(f)[:, None].expand(-1, 12).contiguous()
    bumpy = replace(curve, at=(0, 1, 2, 6, 8), values=values)
    (warning,) = (w for w in bumpy.warnings if "--points all" in w)
    assert "fewer than 8 heads between the 5 points" in warning
