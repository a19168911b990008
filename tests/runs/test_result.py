"""One kind of result: whatever we measure has the same manners."""

import html

import plotly.graph_objects as go
import pytest
import torch

import circuits
import mechheads
import tasks
from mechheads.errors import MechheadsError
from mechheads.filler.accuracy import Accuracies, ask
from mechheads.filler.average_attention import measure_attention
from mechheads.filler.experiment import Filler
from mechheads.filler.insertion import make
from mechheads.gating.contrast import Side, run_contrasts
from mechheads.gating.experiment import Gating, gate_task
from mechheads.masking.experiment import mask_tasks
from mechheads.metrics import text
from mechheads.observe.edges import count_edges
from mechheads.prompts.partitions import QuestionSplit
from mechheads.runs.result import FIGURES, REPORTS, Result
from mechheads.scoring.gate_fitting import FitSettings
from tasks.questions import make_questions

FEW = FitSettings(seeds=2, updates=4)


@pytest.fixture(scope="module")
def results():
    """A result of every kind, by the name of its kind."""
    model = mechheads.load("mini")
    prompts = tasks.make("math", model, n=16)
    discovery = circuits.discover(
        model, prompts, method="attribution", draws=2, alternatives=1, quiet=True
    )
    edges = circuits.discover_edges(model, prompts, draws=2, points=3, quiet=True)
    parts = gate_task(model, *prompts.halves(), FEW, k=8, points=3, quiet=True)
    one, two = (Side(str(i), half, half) for i, half in enumerate(prompts.halves()))
    (made,) = make_questions("retrieval", model, n=12)
    ranked, asked = made.split_at(6)
    split = QuestionSplit((ranked,), (asked,))
    masking = mask_tasks(
        model,
        split,
        [text.find("chrf"), text.find("exact")],
        k="2",
        draws=2,
        max_tokens=2,
        matrix=True,
        quiet=True,
    )
    filled = {c: make(model, made.items, c, length=4) for c in ("none", "mless")}
    said = ask(model, made.items, filled, max_tokens=2, stop=("\n",), quiet=True)
    accuracies, attention = Accuracies((said,)), measure_attention(model, filled, None)
    found = [
        discovery,
        discovery.curve,
        discovery.faithfulness,
        discovery.inclusion,
        discovery.clusters,
        discovery.alternatives,
        circuits.compare([discovery], [discovery]),
        circuits.rank_methods(
            model, prompts, methods=["attribution", "random"], draws=2, quiet=True
        ),
        edges,
        edges.curve,
        circuits.compare_edges(edges, edges),
        Gating((parts, parts)),
        parts.gates,
        parts.ablation,
        run_contrasts(model, [("", one, two)], FEW, quiet=True),
        masking,
        masking.matrix,
        Filler(accuracies, (attention,), {"length": Accuracies((said,), "length")}, ("careful",)),
        accuracies,
        attention,
        discovery.effects,
        mechheads.ablate(model, prompts, "L3H4", quiet=True),
        mechheads.patch_positions(model, tasks.make("greater_than", model, n=4), quiet=True),
        mechheads.edge_attribution(model, prompts, quiet=True),
        mechheads.head_types(model),
        mechheads.head_activity(model, prompts, quiet=True),
        mechheads.attend(model, prompts.pairs[0].clean),
        mechheads.evaluate(model, prompts, quiet=True),
        count_edges(model, prompts, quiet=True),
    ]
    return {type(result).__name__: result for result in found}


def test_every_kind_of_result_is_here(results):
    assert set(results) == set(FIGURES)
    assert set(REPORTS) < set(FIGURES)


@pytest.mark.parametrize("kind", FIGURES)
def test_it_sums_itself_up_and_is_the_same_after_saving(kind, results, tmp_path):
    result = results[kind]
    assert isinstance(result, Result)
    folder = result.save(str(tmp_path / "new" / "folder"))
    again = type(result).load(str(folder))
    assert again.headline.keys() == result.headline.keys()
    assert str(again.headline) == str(result.headline)  # not a number equals itself here
    assert again.sentence == result.sentence
    assert again.sentence.endswith(".")
    assert again.warnings == result.warnings
    assert again.frame().equals(result.frame())
    assert len(result.frame())
    assert html.escape(result.sentence) in result._repr_html_()
    assert isinstance(again.plot(), go.Figure)


@pytest.mark.parametrize("kind", REPORTS)
def test_a_report_needs_no_run(kind, results, tmp_path):
    page = results[kind].report(tmp_path / "report")
    assert page == tmp_path / "report" / "report.html"
    assert (
        html.escape(results[kind].sentence, quote=False).replace("'", "&#39;") in page.read_text()
    )
    assert type(results[kind]).load(page.parent).sentence == results[kind].sentence


def test_what_has_no_report_says_so(results, tmp_path):
    with pytest.raises(MechheadsError, match="HeadTypes has no report"):
        results["HeadTypes"].report(tmp_path)


def test_a_result_of_another_kind_is_refused(results, tmp_path):
    results["HeadTypes"].save(tmp_path)
    with pytest.raises(MechheadsError, match="HeadEffects"):
        type(results["HeadEffects"]).load(tmp_path)


def test_effects_from_elsewhere_must_be_of_the_same_prompts(results):
    model = mechheads.load("mini")
    prompts = tasks.make("math", model, n=16)
    effects = results["HeadEffects"]
    again = circuits.discover(model, prompts, effects=effects, draws=2, quiet=True)
    assert torch.equal(again.curve.values, results["Discovery"].curve.values)
    with pytest.raises(MechheadsError, match=r"These effects are of math on mini \(8 prompts\)"):
        circuits.discover(model, tasks.make("math", model, n=20), effects=effects, quiet=True)
