"""Explained effect: 0 with no heads, 1 with all, and known in between where a model is planted."""

from dataclasses import replace

import pytest
import torch
from pairs import random_pairs

from circuits.curve import Curve, explained_effect_curve
from circuits.measured import explained, has_gap, needed
from mechheads.engine.head_subsets import measure_subsets, nested
from mechheads.errors import MechheadsError
from mechheads.scoring.activation_patching import patch

ORDER = [(1, 2), (0, 0), (0, 3), (1, 1), (1, 0), (0, 1), (1, 3), (0, 2)]


def test_no_heads_explain_nothing_and_all_heads_everything(tiny):
    curve = explained_effect_curve(tiny, random_pairs(tiny, 2), ORDER, draws=3)
    assert curve.explained[0] == 0
    assert curve.explained[-1] == 1
    assert (curve.random_explained[:, 0] == 0).all()
    assert (curve.random_explained[:, -1] == 1).all()
    assert curve.random_at == (0, 3, 5, 8)
    assert curve.random_explained.shape == (3, 4)


def test_points_are_the_metric_of_the_first_heads_kept(tiny):
    prompts = random_pairs(tiny, 2)
    curve = explained_effect_curve(tiny, prompts, ORDER, draws=2)
    means = measure_subsets(tiny, prompts, nested(ORDER, 2, 4)).mean(1)
    wanted = (means - means[0]) / (means[-1] - means[0])
    torch.testing.assert_close(curve.explained, wanted)
    keep = torch.zeros(1, 2, 4)
    for layer, head in ORDER[:3]:
        keep[0, layer, head] = 1.0
    three = measure_subsets(tiny, prompts, keep).mean()
    torch.testing.assert_close(curve.values[3].mean(), three)


def test_thresholds_are_reached_once_and_for_good():
    rising = torch.tensor([[0.0, 0.95, 0.5, 0.92, 1.1, 1.0]])
    assert needed(rising, 0.9).tolist() == [1]
    assert needed(rising, 0.9, stays=True).tolist() == [3]
    assert needed(torch.tensor([[0.0, 0.1, 1.0]]), 0.9, stays=True).tolist() == [2]


def curve_of(explained):
    heads = tuple((0, i) for i in range(len(explained) - 1))
    values, every = torch.tensor(explained)[:, None], tuple(range(len(explained)))
    return Curve("t", "m", "x", heads, every, values, torch.tensor([explained]), every)


def test_areas_are_mibs():
    """Worked out by hand: f at 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50 and 100 % of 100 heads."""
    straight = curve_of([k / 100 for k in range(101)])
    assert straight.cpr == pytest.approx(0.5, abs=2e-4)
    assert straight.cmd == pytest.approx(0.499, abs=2e-4)
    jump = curve_of([0.0, *[1.0] * 100])
    assert jump.cpr == pytest.approx(0.005 / 2 + 0.99)
    assert jump.cmd == pytest.approx(0.004 + 0.005 / 2)
    over = curve_of([0.0, *[2.0] * 99, 1.0])
    assert over.cpr == pytest.approx(0.005 + 2 * 0.49 + 0.75)
    assert over.cmd == pytest.approx(0.004 + 0.005 + 0.49 + 0.25)
    assert (straight.random_cpr, straight.random_cmd) == (straight.cpr, straight.cmd)


def by_mib(model, prompts, effects, absolute):
    """MIB's areas, step by step: f at each share, then the trapezoids one by one."""
    shares = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)
    heads = [(layer, head) for layer in range(2) for head in range(4)]
    size = {head: float(effects.scores[head]) for head in heads}
    size = {head: abs(value) if absolute else value for head, value in size.items()}
    order = sorted(heads, key=lambda head: -size[head])
    faithful = []
    for share in shares:
        keep = torch.zeros(3, 2, 4)
        keep[1] = 1
        for head in order[: int(share * len(heads))]:
            keep[2][head] = 1
        none, whole, some = measure_subsets(model, prompts, keep).mean(1).tolist()
        faithful.append((some - none) / (whole - none))
    under = from_1 = 0.0
    for i in range(len(shares) - 1):
        step = shares[i + 1] - shares[i]
        under += step * (faithful[i] + faithful[i + 1]) / 2
        from_1 += step * (abs(1 - faithful[i]) + abs(1 - faithful[i + 1])) / 2
    return under, from_1


@pytest.mark.parametrize("signed", [False, True])
def test_cpr_ranks_by_sign_and_cmd_by_size_whichever_is_drawn(signed, tiny):
    prompts = random_pairs(tiny, 2)
    effects = patch(tiny, random_pairs(tiny, 3))
    assert effects.ranking(signed=True)[:4] != effects.ranking()[:4]
    curve = explained_effect_curve(tiny, prompts, effects, signed=signed, draws=2)
    by_sign, by_size = (by_mib(tiny, prompts, effects, absolute) for absolute in (False, True))
    assert (curve.cpr, curve.cmd) == pytest.approx((by_sign[0], by_size[1]), abs=1e-5)
    own = by_sign if signed else by_size
    assert (curve.area_under, curve.area_from_1) == pytest.approx(own, abs=1e-5)
    assert abs(by_sign[0] - by_size[0]) > 1e-3 < abs(by_sign[1] - by_size[1])
    assert curve.ranking == tuple(effects.ranking(signed=signed))
    names = ("cpr", "cmd", "area_under", "area_from_1")
    assert [curve.headline[name] for name in names] == [getattr(curve, name) for name in names]


def test_the_other_ranking_costs_no_more_than_the_shares_of_mib(tiny, monkeypatch):
    measured = []

    def spy(model, prompts, keep, *args, **options):
        measured.append(len(keep.flatten(1).unique(dim=0)))
        return measure_subsets(model, prompts, keep, *args, **options)

    monkeypatch.setattr("circuits.curve.measure_subsets", spy)
    effects = patch(tiny, random_pairs(tiny, 3))
    for ranking in (effects.ranking(), effects):
        explained_effect_curve(tiny, random_pairs(tiny, 2), ranking, draws=2)
    # Of 8 heads, MIB's shares are 0, 1, 4 and 8.
    assert 0 <= measured[1] - measured[0] <= 2


def test_random_rankings_take_no_more_points_than_the_ranking_itself(tiny):
    prompts = random_pairs(tiny, 2)
    one, many = (explained_effect_curve(tiny, prompts, ORDER, draws=n) for n in (2, 3))
    assert (one.random_at, many.random_at) == ((0, 2, 4, 6, 8), (0, 3, 5, 8))
    for curve in (one, many):
        inside = len(curve.random_at) - 2
        assert inside * len(curve.random_explained) <= len(curve.at) - 2
    band = one.random_band()[0]
    assert band[5] == pytest.approx(float(band[4] + band[6]) / 2)


def test_one_random_ranking_is_refused(tiny):
    with pytest.raises(MechheadsError, match="--draws takes 2 or more random rankings, got 1"):
        explained_effect_curve(tiny, random_pairs(tiny, 2), ORDER, draws=1)


def test_a_curve_without_numbers_needs_no_number_of_heads():
    curves = torch.tensor([[0.0, 0.5, 1.0], [torch.nan] * 3, [0.0, 0.1, 0.2]])
    found = needed(curves, 0.9)
    assert found[0] == found[2] == 2
    assert found[1].isnan()


def test_intervals_hold_the_curve(tiny):
    many = explained_effect_curve(tiny, random_pairs(tiny, 2, (8,) * 40), ORDER, draws=2)
    low, high = many.interval()
    inside = (low <= many.explained + 1e-6) & (many.explained <= high + 1e-6)
    assert inside.all()
    assert low[0] == high[0] == 0
    assert low[-1] == high[-1] == 1
    assert (high - low)[1:-1].max() > 0


def test_a_frame_adds_a_head_a_row(tiny):
    frame = explained_effect_curve(tiny, random_pairs(tiny, 2), ORDER, draws=2).frame()
    assert frame.columns.tolist() == [
        "k",
        "layer",
        "head",
        "explained",
        "ci_low",
        "ci_high",
        "random_mean",
        "random_low",
        "random_high",
    ]
    assert frame.loc[0, ["layer", "head"]].isna().all()
    assert list(zip(frame["layer"][1:], frame["head"][1:], strict=True)) == ORDER


def test_rankings_that_miss_a_head_are_refused(tiny):
    with pytest.raises(MechheadsError, match="each of its 8 heads once"):
        explained_effect_curve(tiny, random_pairs(tiny, 2), ORDER[1:])


def test_ratios_are_of_means_not_means_of_ratios():
    values = torch.tensor([[0.0, 0.0], [1.0, 1.0], [1.0, 3.0]])
    assert explained(values.mean(1)).tolist() == [0.0, 0.5, 1.0]


def test_a_gap_that_is_rounding_is_no_gap():
    none = torch.full((8,), 0.7122718)
    assert not has_gap(none, torch.full((8,), 0.7122719))
    assert has_gap(none, torch.full((8,), 0.7123718))
    assert not has_gap(none, torch.full((8,), torch.nan))
    assert not has_gap(torch.zeros(8), torch.zeros(8))


def test_an_effect_that_may_be_chance_is_a_warning():
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(3, 32, generator=generator)
    curve = Curve(
        "t", "m", "logit_diff", ((0, 0), (0, 1)), (0, 1, 2), noise, torch.rand(2, 2), (0, 2)
    )
    (warning,) = curve.warnings
    assert "which may be 0" in warning
    sure = torch.cat([noise[:2], noise[2:] + 2])
    assert not replace(curve, values=sure).warnings
