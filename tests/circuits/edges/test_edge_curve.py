"""Curves of edges: what is measured, and what follows from it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from pairs import random_pairs

import circuits.edges.curve as edge_curves
from circuits.edges.curve import EdgeCurve, edge_curve, needed
from circuits.points import SHARES
from mechheads.engine.edge_subsets import measure_edges
from mechheads.errors import MechheadsError
from mechheads.scoring.edge_attribution import edge_attribution

SHORT = {"draws": 2, "points": 6, "quiet": True}


@pytest.fixture(scope="module")
def effects(tiny):
    return edge_attribution(tiny, random_pairs(tiny, 2, (8,) * 6), steps=2, quiet=True)


@pytest.fixture(scope="module")
def judging(tiny):
    return random_pairs(tiny, 3, (8,) * 6)


@pytest.fixture(scope="module")
def curve(tiny, effects, judging) -> EdgeCurve:
    return edge_curve(tiny, judging, effects, **SHORT)


def test_edges_are_kept_by_size_and_f_runs_from_none_to_all(curve, effects):
    scores = effects.by_receiver(curve.graph).flatten()[curve.ranking].abs()
    assert (scores[:-1] >= scores[1:]).all()
    assert curve.explained[[0, -1]].tolist() == [0.0, 1.0]
    assert (curve.at[0], curve.at[-1]) == (0, curve.graph.count)


def test_the_threshold_is_crossed_between_two_neighbours(curve):
    n = curve.needed(0.9)
    f = dict(zip(curve.at, curve.explained.tolist(), strict=True))
    assert f[n] >= 0.9 - 1e-6 > f[n - 1]
    assert not any(value >= 0.9 for k, value in f.items() if k < n)


@pytest.mark.parametrize(("threshold", "n"), [(0.3, 21), (0.9, 62), (0.99, 68), (1.0, 68)])
def test_the_crossing_is_found_to_the_edge(threshold, n, tiny, effects, judging, monkeypatch):
    def straight(model, prompts, ranks, counts, *args, **options):
        return torch.tensor(counts).float()[:, None].expand(-1, 6)

    monkeypatch.setattr(edge_curves, "measure_edges", straight)
    found = edge_curve(tiny, judging, effects, threshold=threshold, **SHORT)
    assert found.needed(threshold) == n
    assert {n - 1, n} <= set(found.at)
    assert len(found.at) < 30


def test_the_rank_of_an_edge_decides_when_it_is_kept(curve, tiny, judging):
    ranks = curve.graph.ranks(curve.ranking)
    n = curve.at[3]
    (values,) = measure_edges(tiny, judging, ranks, [n], quiet=True)
    torch.testing.assert_close(values, curve.values[3], rtol=1e-4, atol=1e-5)
    assert torch.equal(curve.graph.in_order(ranks), curve.ranking)


def test_signed_rankings_begin_with_edges_that_help(tiny, effects, judging, curve):
    signed = edge_curve(tiny, judging, effects, signed=True, **SHORT)
    scores = effects.by_receiver(curve.graph).flatten()[signed.ranking]
    assert (scores[:-1] >= scores[1:]).all()
    # MIB's numbers take both rankings, whichever is drawn.
    assert signed.cpr == pytest.approx(curve.cpr, abs=1e-4)
    assert signed.cmd == pytest.approx(curve.cmd, abs=1e-4)


def test_cpr_and_cmd_are_areas_at_mibs_shares(curve, tiny, judging, effects):
    scores = effects.by_receiver(curve.graph).flatten()[curve.graph.edges]
    none, whole = curve.values[[0, -1]].mean(1).tolist()
    areas = []
    for ranked in (scores, scores.abs()):
        order = curve.graph.edges[ranked.argsort(descending=True, stable=True)]
        counts = [int(share * curve.graph.count) for share in SHARES]
        values = measure_edges(tiny, judging, curve.graph.ranks(order), counts, quiet=True)
        areas.append((values.mean(1).numpy() - none) / (whole - none))
    assert curve.cpr == pytest.approx(np.trapezoid(areas[0], SHARES), abs=1e-4)
    assert curve.cmd == pytest.approx(np.trapezoid(abs(1 - areas[1]), SHARES), abs=1e-4)


def test_intervals_are_those_of_resampled_prompts(curve):
    draws = curve.needed_draws(0.9)
    low, high = curve.needed_interval(0.9)
    assert low <= curve.needed(0.9) <= high
    assert draws.min() <= low < high <= draws.max() <= curve.graph.count
    same = replace(curve, values=curve.values[:, :1].expand(-1, 6).contiguous())
    low, high = same.needed_interval(0.9)
    assert low == high == same.needed(0.9)


def test_needed_is_linear_between_points():
    curves = torch.tensor([[0.0, 0.5, 1.0, 1.0], [0.0, 0.95, 0.2, 1.0], [0.0, 0.0, 0.0, 0.0]])
    at = (0, 10, 30, 100)
    assert needed(curves, at, 0.9).tolist() == [26.0, 10.0, 100.0]
    assert needed(curves[:2], at, 0.9, stays=True).tolist() == [26.0, 92.0]
    assert needed(torch.full((1, 4), torch.nan), at, 0.9).isnan().all()


def test_parts_and_senders_count_the_first_edges(curve):
    parts = curve.parts(curve.graph.count)
    assert parts == {"q": 16, "k": 16, "v": 16, "mlp": 12, "logits": 8}
    assert sum(curve.parts(5).values()) == 5
    assert curve.senders(0) == []
    assert len(curve.senders(curve.graph.count)) == 8


def test_a_curve_of_elsewhere_is_checked(curve):
    for change in (
        {"ranking": curve.ranking.roll(1)[1:]},
        {"ranking": curve.ranking.clone().fill_(7)},
        {"at": (0, *curve.at[:-1])},
        {"graph": replace(curve.graph, layers=10**6)},
        {"by_size": curve.by_size[1:], "by_sign": curve.by_sign[1:]},
        {"random_at": (0, curve.graph.count)},
        {"settings": {}},
    ):
        with pytest.raises(ValueError, match=r"it|its"):
            replace(curve, **change).check()
    curve.check()


def test_wrong_settings_are_named(tiny, effects, judging):
    with pytest.raises(MechheadsError, match="--draws takes 2 or more"):
        edge_curve(tiny, judging, effects, draws=1)
    with pytest.raises(MechheadsError, match="points must be 2 or more"):
        edge_curve(tiny, judging, effects, points=1)
    with pytest.raises(MechheadsError, match="--threshold"):
        edge_curve(tiny, judging, effects, threshold=0.0)
