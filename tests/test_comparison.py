"""Multipliers are ratios of head counts, whichever way they go."""

from dataclasses import replace

import pytest
import torch
from pairs import random_pairs

from circuits.comparison import compare
from circuits.discovery import Discovery, discover
from mechheads.errors import MechheadsError


@pytest.fixture(scope="module")
def found(planted) -> Discovery:
    """A discovery on the planted model."""
    return discover(planted, random_pairs(planted, 2, (8,) * 16), draws=2)


def bent(found: Discovery, needed: int, model: str) -> Discovery:
    """The same with a curve of eight heads that jumps to 1 at `needed`, on every prompt."""
    values = torch.tensor([[0.0 if k < needed else 1.0] for k in range(9)]).expand(9, 8)
    return replace(found, curve=replace(found.curve, values=values, model=model))


def test_the_multiplier_is_the_ratio_of_heads_needed(found):
    (task,) = compare([bent(found, 6, "a")], [bent(found, 2, "b")]).tasks
    assert (task.n_standard, task.n_sparse, task.multiplier) == (6, 2, 3.0)
    assert task.low == task.high == 3.0


def test_a_multiplier_below_one_is_said_as_plainly(found):
    comparison = compare([bent(found, 2, "a")], [bent(found, 6, "b")])
    assert comparison.tasks[0].multiplier == pytest.approx(1 / 3)
    assert "b needs fewer heads than a on no task; more on random names" in comparison.sentence
    assert "0.33x" in comparison.tasks[0].words


def test_a_model_with_itself_has_a_multiplier_of_one_and_a_jaccard_of_one(found):
    comparison = compare([found], [found])
    (task,) = comparison.tasks
    assert task.multiplier == task.low == task.high == task.jaccard == 1
    assert task.edges_standard == task.edges_sparse > 0
    assert "as many on random names" in comparison.sentence


def test_edges_are_those_of_the_circuits_heads(found):
    (task,) = compare([bent(found, 8, "a")], [bent(found, 1, "b")]).tasks
    layer, head = found.curve.ranking[0]
    used = found.edges.used.float()
    assert task.edges_standard == pytest.approx(float(used.sum((1, 2)).mean()))
    assert task.edges_sparse == pytest.approx(float(used[:, layer, head].mean()))


def test_intervals_come_from_prompts(found):
    values = found.curve.values.clone()
    steady = bent(found, 2, "b")
    (task,) = compare([replace(found, curve=replace(found.curve, values=values))], [steady]).tasks
    assert task.low <= task.multiplier <= task.high


def test_frames_have_a_row_per_task(found):
    comparison = compare([found, found], [found, found])
    names = ["task", "n_standard", "n_sparse", "multiplier", "ci_low", "ci_high"]
    assert comparison.frame().columns.tolist() == names
    assert len(comparison.frame()) == len(comparison.edge_frame()) == 2
    assert len(comparison.plot().layout.annotations) == 2  # type: ignore[arg-type]


def test_different_tasks_are_refused(found):
    other = replace(found, curve=replace(found.curve, task="other"))
    with pytest.raises(MechheadsError, match="One run is of task random names, the other of other"):
        compare([found], [other])
