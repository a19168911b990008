"""Models whose heads are known, from the command line."""

import json
from typing import Any

import pytest

from mechheads.compare import compare
from mechheads.discover import discover
from mechheads.show import show
from mechheads.sweeping.grid import Cell
from mechheads.verify import verify


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    few: dict[str, Any] = {"n": 8, "test": 8, "draws": 2}
    return discover(
        model="known/induction", method="ensemble:patch,atp", out=str(out), quiet=True, **few
    ).folder


def test_discover_takes_the_prompts_of_the_model(run):
    record = json.loads((run / "result.json").read_text())
    assert record["settings"]["task"] == "known/induction"
    assert "--task known/induction --model known/induction" in (run / "report.md").read_text()
    assert run.name.startswith("induction-induction-ensemble_patch_atp-")


def test_the_report_compares_the_circuit_with_the_known_heads(run):
    report = (run / "report.md").read_text()
    assert "AUROC" in report
    assert "previous token" in report
    assert "opposing" in report


def test_its_run_is_verified_without_permission(run, capsys):
    verify(str(run), quiet=True)
    assert "identical" in capsys.readouterr().out


def test_show_prints_its_prompts(capsys):
    show(model="known/ioi", n=2, test=8, quiet=True)
    assert "were at the" in capsys.readouterr().out


def test_two_known_models_are_compared_on_the_task_of_one(tmp_path):
    few: dict[str, Any] = {"n": 4, "test": 4, "draws": 2}
    found = compare(
        standard="known/induction",
        sparse="known/saturated",
        tasks="known/induction",
        out=str(tmp_path),
        quiet=True,
        **few,
    )
    assert found.folder is not None


def test_a_cell_without_a_task_has_the_one_of_its_model():
    from mechheads.sweeping.overview import _task

    assert _task(Cell("discover", (("model", "known/ioi"),))) == "known/ioi"
    assert _task(Cell("discover", (("model", "mini"),))) == "ioi"
