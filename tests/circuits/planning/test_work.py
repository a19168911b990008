"""What discover says before it begins, and the stages of its progress bar, are one plan."""

from typing import Any

import pytest
from pairs import random_pairs

from circuits import discover, experiment
from circuits.planning import work
from circuits.planning.work import announce, plan_discovery
from mechheads import progress
from mechheads.engine import costs

SETTINGS: dict[str, Any] = {
    "method": "patch",
    "scoring": {},
    "metric": None,
    "replacement": "corrupt",
    "budget": None,
    "points": "auto",
    "draws": 10,
    "k": None,
    "search": "top",
    "alternatives": 0,
}


@pytest.fixture
def halves(tiny):
    return random_pairs(tiny, 2, (8,) * 16).halves()


def planned(model, halves, **changes):
    return plan_discovery(model, *halves, **SETTINGS | changes)


def test_patching_all_heads_is_planned_as_counted(tiny, halves):
    plan = planned(tiny, halves)
    sizes, loads = costs.sizes_of(tiny), costs.loads_of(tiny, halves[0])
    wanted = (
        costs.patching(sizes, loads) - costs.cached(sizes, loads) + 2 * costs.whole(sizes, loads)
    )
    assert plan.stages["Ranking heads"] == pytest.approx(wanted)
    assert plan.words == "patch all 8 heads on 8 prompts, curve at 9 points, 10 random rankings"
    assert plan.sentence(plan.total / 100).endswith("rankings: about 2 min")


def test_more_prompts_points_and_searches_are_more_work(tiny, halves):
    less = planned(tiny, halves)
    assert planned(tiny, halves, draws=20).total > less.total
    assert planned(tiny, halves, search="prune").total > less.total
    assert planned(tiny, halves, alternatives=1).total > less.total
    assert planned(tiny, [side.first(4) for side in halves]).total < less.total
    assert planned(tiny, halves, method="attribution").total < less.total
    assert planned(tiny, halves, method=None).stages["Ranking heads"] == 0


def test_auto_is_planned_as_what_it_will_choose(tiny, halves):
    exact = planned(tiny, halves)
    assert planned(tiny, halves, method="auto") == exact
    little = planned(tiny, halves, method="auto", scoring={"time": "0"})
    assert little == planned(tiny, halves, method="hybrid")
    assert planned(tiny, halves, method="auto", speed=1.0).words.startswith("hybrid, 8 heads")
    assert planned(tiny, halves, method="auto", scoring={"time": "soon"}) == exact


def test_long_work_is_announced_to_who_watches(tiny, halves, monkeypatch, capsys):
    monkeypatch.setattr(work, "USUAL", 0.0)
    monkeypatch.setattr(work, "SPARED", 1e9)
    monkeypatch.setattr(costs, "measure_speed", lambda *_, **__: planned(tiny, halves).total / 100)
    announce(tiny, halves[0], halves[1], SETTINGS)
    assert not capsys.readouterr().err
    with progress.forced():
        announce(tiny, halves[0], halves[1], SETTINGS, quiet=True)
        assert not capsys.readouterr().err
        announce(tiny, halves[0], halves[1], SETTINGS)
    said = capsys.readouterr().err
    assert said == f"discover: {planned(tiny, halves).words}: about 2 min.\n"


def test_short_work_is_neither_timed_nor_announced(tiny, halves, monkeypatch, capsys):
    def never(*_, **__):
        raise AssertionError

    monkeypatch.setattr(costs, "measure_speed", never)
    with progress.forced():
        announce(tiny, halves[0], halves[1], SETTINGS)
    assert not capsys.readouterr().err


def test_the_bar_has_the_stages_of_the_plan(tiny, halves, monkeypatch):
    plans, seen = [], []
    real_announce, real_stages = experiment.announce, experiment.stages

    def planning(*given):
        plans.append(real_announce(*given))
        return plans[-1]

    def drawing(title, weights, quiet):
        seen.append(weights)
        return real_stages(title, weights, quiet)

    monkeypatch.setattr(experiment, "announce", planning)
    monkeypatch.setattr(experiment, "stages", drawing)
    discover(tiny, *halves, draws=2, quiet=True)
    assert seen == [plans[0].stages]
    assert plans[0] == planned(tiny, halves, draws=2)
