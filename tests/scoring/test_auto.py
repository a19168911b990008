"""`auto` is patch where there is time and hybrid where there is none, and says which."""

import pytest
import torch
from pairs import random_pairs

from mechheads.engine import costs
from mechheads.errors import MechheadsError
from mechheads.scoring.activation_patching import patch
from mechheads.scoring.screened import auto as module
from mechheads.scoring.screened.auto import auto
from mechheads.scoring.screened.hybrid import hybrid


@pytest.mark.parametrize("direction", ["noising", "denoising"])
def test_with_time_it_is_patch_bit_for_bit(direction, tiny):
    prompts = random_pairs(tiny, 3)
    ours, exact = (f(tiny, prompts, direction=direction) for f in (auto, patch))
    assert torch.equal(ours.values, exact.values)
    assert ours.method == "patch"
    assert ours.settings == {**exact.settings, "chosen_by": "auto", "time": 10.0}
    assert "fits in --time" in ours.notes["why"]


@pytest.mark.parametrize("direction", ["noising", "denoising"])
def test_without_time_it_is_hybrid_bit_for_bit(direction, tiny):
    prompts = random_pairs(tiny, 3)
    ours = auto(tiny, prompts, direction=direction, time=0.0)
    screened = hybrid(tiny, prompts, direction=direction)
    assert torch.equal(ours.values, screened.values)
    assert ours.method == "hybrid"
    assert screened.notes.items() <= ours.notes.items()
    assert "longer than --time" in ours.notes["why"]


def test_the_time_decides_at_the_measured_speed(tiny, monkeypatch):
    prompts = random_pairs(tiny, 3)
    work = costs.patching(costs.sizes_of(tiny), costs.loads_of(tiny, prompts))
    monkeypatch.setattr(module, "SLOW", 0.0)
    monkeypatch.setattr(costs, "measure_speed", lambda *_, **__: work / 120)  # two minutes
    assert auto(tiny, prompts, time=2.01).method == "patch"
    assert auto(tiny, prompts, time=1.99).method == "hybrid"


def test_few_operations_are_not_timed(tiny, monkeypatch):
    def never(*_, **__):
        raise AssertionError

    monkeypatch.setattr(costs, "measure_speed", never)
    assert auto(tiny, random_pairs(tiny, 3)).method == "patch"


def test_nothing_that_depends_on_the_machine_is_in_the_result(tiny, monkeypatch):
    monkeypatch.setattr(module, "SLOW", 0.0)  # so that it is timed
    prompts = random_pairs(tiny, 3)
    one, two = (auto(tiny, prompts) for _ in range(2))
    assert (one.settings, one.notes) == (two.settings, two.notes)


@pytest.mark.parametrize("time", [-1.0, float("nan"), float("inf")])
def test_time_is_a_number_of_minutes(time, tiny):
    with pytest.raises(MechheadsError, match="--time takes 0 or more minutes"):
        auto(tiny, random_pairs(tiny, 3), time=time)


@pytest.mark.parametrize("replacement", ["zero", "mean"])
def test_what_hybrid_cannot_replace_is_patched_however_long_it_takes(replacement, tiny):
    prompts = random_pairs(tiny, 3)
    ours = auto(tiny, prompts, time=0.0, replacement=replacement)
    exact = patch(tiny, prompts, replacement=replacement)
    assert ours.method == "patch"
    assert torch.equal(ours.values, exact.values)
