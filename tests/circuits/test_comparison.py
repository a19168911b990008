"""Multipliers are ratios of head counts, whichever way they go."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from pairs import random_pairs

from circuits import Discovery, discover
from circuits.comparison import Comparison, Ratio, compare
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
    comparison = compare([found, found], [replace(found, sparse=True)] * 2)
    names = ["task", "n_standard", "n_sparse", "multiplier", "ci_low", "ci_high"]
    assert comparison.frame().columns.tolist() == names
    assert len(comparison.frame()) == len(comparison.edge_frame()) == 2
    for figure in (comparison.plot(), comparison.plot(edges=True)):
        assert len(figure.layout.annotations) == 2  # type: ignore[arg-type]
    figure: Any = comparison.plot(edges=True)
    # The last is of edges, along a log axis: one tick alone would not say where the points are.
    axis = figure.layout.xaxis
    points = figure.data[-1].x
    low, high = min(points), max(points)
    ends = [tick for tick in axis.tickvals if low / 6 < tick < 6 * high]
    assert axis.type == "log"
    assert len(ends) >= 2


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
    message = "random names: one run has metric logit_diff, the other logprob.* same --metric"
    with pytest.raises(MechheadsError, match=message):
        compare([found], [other])
    other = replace(found, curve=replace(found.curve, settings={"replacement": "zero"}))
    message = "random names: one run has replacement corrupt, the other zero.* same --replacement"
    with pytest.raises(MechheadsError, match=message):
        compare([found], [other])
    with pytest.raises(MechheadsError, match="--threshold"):
        compare([found], [found], threshold=0.0)
    with pytest.raises(MechheadsError, match="1 runs of one model and 2 of the other"):
        compare([found], [found, found])


def test_equal_runs_differ_in_nothing(found):
    assert compare([found], [found]).differences == ()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda run: {"effects": replace(run.effects, method="ig")}, "(method patch and ig)"),
        (
            lambda run: {"effects": replace(run.effects, settings={"direction": "denoising"})},
            "direction noising and denoising",
        ),
        (lambda run: {"signed": True}, "(signed False and True)"),
        (
            lambda run: {
                "effects": replace(
                    run.effects,
                    values=run.effects.values[:5],
                    clean=run.effects.clean[:5],
                    corrupt=run.effects.corrupt[:5],
                )
            },
            "were ranked on 8 prompts, those of gpt2 (B) on 5",
        ),
        (
            lambda run: {
                "curve": replace(run.curve, values=run.curve.values[:, :6]),
                "edges": replace(
                    run.edges, used=run.edges.used[:6], possible=run.edges.possible[:6]
                ),
            },
            "were judged on 8 prompts, those of gpt2 (B) on 6",
        ),
        (lambda run: {"judged_on": "other"}, "judged on different prompts"),
        (lambda run: {"threshold": 0.8}, "has threshold 0.9, that of gpt2 (B) 0.8; here both"),
    ],
    ids=["method", "direction", "signed", "ranked", "judged", "prompts", "threshold"],
)
def test_other_differences_are_warnings_that_name_their_tasks(found, change, words):
    other = replace(found, **change(found))
    comparison = compare([found, found], [other, found])
    (warning,) = comparison.differences
    assert words in warning
    assert warning.startswith("random names: ")
    assert warning in comparison.warnings


def test_runs_of_before_prompts_were_kept_are_compared_without_a_warning(found):
    assert compare([replace(found, judged_on="")], [found]).differences == ()


def test_heads_of_different_architectures_do_not_overlap(found, tmp_path):
    wide = replace(found, shape={**found.shape, "d_model": 999})
    comparison = compare([found], [wide])
    assert comparison.tasks[0].jaccard is None
    assert "2 layers of 4 heads, width 999: their heads do not" in comparison.warnings[-1]
    assert comparison.tasks[0].heads.multiplier == 1
    comparison.report(tmp_path / "run")
    assert "verlap: Jaccard" not in (tmp_path / "run" / "report.html").read_text()
    assert Comparison.load(tmp_path / "run").tasks[0].jaccard is None
    comparison = compare([found, found], [found, wide])
    comparison.report(tmp_path / "both")
    assert "verlap: Jaccard" in (tmp_path / "both" / "report.html").read_text()


@pytest.mark.parametrize(
    ("models", "sparse", "labels", "names"),
    [
        (("m", "n"), (False, True), ("standard", "sparse"), ("m", "n")),
        (("m", "n"), (True, False), ("sparse", "standard"), ("m", "n")),
        (("m", "n"), (False, False), ("m", "n"), ("m", "n")),
        (("m", "n"), (True, True), ("m", "n"), ("m", "n")),
        (("m", "m"), (False, False), ("A", "B"), ("m (A)", "m (B)")),
        (("m", "m"), (False, True), ("standard", "sparse"), ("m (standard)", "m (sparse)")),
    ],
)
def test_only_a_sparse_model_is_called_sparse(models, sparse, labels, names, found, tmp_path):
    one, two = (replace(bent(found, 6 - 4 * i, models[i]), sparse=sparse[i]) for i in range(2))
    comparison = compare([one], [two])
    assert comparison.labels == labels
    assert comparison.frame().columns[1:3].tolist() == [f"n_{label}" for label in labels]
    assert comparison.edge_frame().columns[1:3].tolist() == [f"edges_{label}" for label in labels]
    assert f"{names[1]} needs fewer heads than {names[0]} on random names" in comparison.sentence
    shown = {trace["name"] for trace in comparison.plot().to_dict()["data"] if trace["showlegend"]}
    legend = {m if m == label else f"{label}: {m}" for label, m in zip(labels, models, strict=True)}
    assert legend <= shown
    report = comparison.report(tmp_path / "run").with_suffix(".md").read_text()
    assert f"stays\\_{labels[1]}" in report
    assert ("sparse" in report) == ("sparse" in labels)
    assert Comparison.load(tmp_path / "run").labels == labels
