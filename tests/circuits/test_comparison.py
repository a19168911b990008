"""Multipliers are ratios of head counts, whichever way they go."""

from dataclasses import replace

import pytest
import torch
from pairs import random_pairs

from circuits.comparison import Comparison, Ratio, compare
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
    assert task.heads == Ratio(6.0, 2.0, 3.0, 3.0, 3.0)


def test_a_multiplier_below_one_is_said_as_plainly(found):
    comparison = compare([bent(found, 2, "a")], [bent(found, 6, "b")])
    assert comparison.tasks[0].heads.multiplier == pytest.approx(1 / 3)
    assert "b needs fewer heads than a on no task; more on random names" in comparison.sentence
    assert "0.333x" in comparison.tasks[0].heads.words


def test_a_model_with_itself_has_a_multiplier_of_one_and_a_jaccard_of_one(found):
    comparison = compare([found], [found])
    (task,) = comparison.tasks
    assert task.heads.multiplier == task.heads.low == task.heads.high == task.jaccard == 1
    assert task.edges.standard == task.edges.sparse > 0
    assert task.edges.multiplier == task.edges.low == task.edges.high == 1
    assert "the same number on random names" in comparison.sentence


def test_edges_are_those_of_the_circuits_heads(found):
    (task,) = compare([bent(found, 8, "a")], [bent(found, 1, "b")]).tasks
    layer, head = found.curve.ranking[0]
    used = found.edges.used.float()
    assert task.edges.standard == pytest.approx(float(used.sum((1, 2)).mean()))
    assert task.edges.sparse == pytest.approx(float(used[:, layer, head].mean()))
    assert task.edges.multiplier == pytest.approx(8)


def test_intervals_come_from_prompts(found):
    # Half of the prompts need four heads, the others six: samples differ in what their mean needs.
    early, late = ([0.0 if k < n else 1.0 for k in range(9)] for n in (4, 6))
    values = torch.tensor([early] * 4 + [late] * 4).T
    mixed = replace(found, curve=replace(found.curve, values=values))
    (task,) = compare([mixed], [bent(found, 2, "b")], threshold=0.5).tasks
    assert task.heads.multiplier == 2.0
    assert (task.heads.low, task.heads.high) == (2.0, 3.0)


def test_frames_have_a_row_per_task(found):
    comparison = compare([found, found], [found, found])
    names = ["task", "n_standard", "n_sparse", "multiplier", "ci_low", "ci_high"]
    assert comparison.frame().columns.tolist() == names
    assert len(comparison.frame()) == len(comparison.edge_frame()) == 2
    for figure in (comparison.plot(), comparison.plot(edges=True)):
        assert len(figure.layout.annotations) == 2  # type: ignore[arg-type]


def test_a_comparison_comes_back_as_it_was(found, tmp_path):
    comparison = compare([found, found], [found, found])
    again = Comparison.load(comparison.save(tmp_path / "run"))
    assert again.sentence == comparison.sentence
    assert again.edge_frame().equals(comparison.edge_frame())
    assert again.tasks[1].sparse.curve.ranking == found.curve.ranking


def test_names_do_not_become_html_in_figures(found):
    named = replace(found, curve=replace(found.curve, task="<i>t</i>", model="<b>m</b>"))
    text = compare([named], [named]).plot().to_json() or ""
    assert "<i>" not in text
    assert "<b>m" not in text


def test_different_tasks_are_refused(found):
    other = replace(found, curve=replace(found.curve, task="other"))
    with pytest.raises(MechheadsError, match="One run has task random names, the other other"):
        compare([found], [other])
    other = replace(found, curve=replace(found.curve, metric="logprob"))
    with pytest.raises(MechheadsError, match="One run has metric logit_diff, the other logprob"):
        compare([found], [other])
    with pytest.raises(MechheadsError, match="--threshold"):
        compare([found], [found], threshold=0.0)
