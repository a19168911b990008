"""The command leaderboard: what it writes, says and refuses."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from mechheads.errors import MechheadsError
from mechheads.leaderboard import leaderboard
from mechheads.verify import verify

FEW: dict[str, Any] = {"n": 8, "test": 8, "draws": 2, "quiet": True}


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """Two models, three pairs, two seeds."""
    out = tmp_path_factory.mktemp("runs")
    given = {"models": "mini,known/induction", "tasks": "ioi,math", "seeds": 2, "seed": 3}
    found = leaderboard(**given, methods="patch,direct,random", out=str(out), **FEW)
    assert found.folder is not None
    return found.folder


def test_known_models_are_asked_their_own_task_and_the_others_all(run):
    frame: Any = pd.read_csv(run / "leaderboard.csv")
    columns = ["model", "task", "seed", "method", "measure", "value", "low", "high", "rank"]
    assert frame.columns.tolist() == columns
    pairs = frame[["model", "task"]].drop_duplicates().apply(tuple, axis=1).tolist()
    assert pairs == [("mini", "ioi"), ("mini", "math"), ("known-induction", "known/induction")]
    assert set(frame["seed"]) == {3, 4}
    assert set(frame[frame["measure"] == "auroc"]["model"]) == {"known-induction"}
    assert (frame["measure"] == "cpr").sum() == 3 * 2 * 3
    # Other seeds are other prompts.
    cpr = frame[(frame["measure"] == "cpr") & (frame["model"] == "mini")]
    assert cpr["value"].nunique() == len(cpr) == 12


def test_the_report_says_what_intervals_are_over_and_the_record_has_no_seconds(run):
    report = (run / "report.md").read_text()
    assert "are over pairs of model and task" in report
    assert "heads are known of 1 pair only: of AUROC they are over seeds" in report
    assert "are over the 2 seeds" in report
    timings = json.loads((run / "timings.json").read_text())
    assert {"cpu_seconds of patch", "cpu_seconds of direct", "cpu_seconds of judging"} < {*timings}
    record = json.loads((run / "result.json").read_text())
    assert "seconds" not in json.dumps(record["headline"])
    assert record["headline"]["parts"]["patch"]["auroc"] == 1
    assert set(record["provenance"]) == {"mini", "known/induction"}


def test_its_run_is_verified_without_permission(run, capsys):
    verify(str(run), quiet=True)
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].endswith(": identical")
    assert "report.html: identical." in lines


def test_a_pair_that_cannot_be_measured_is_left_out_with_a_warning(tmp_path, capsys):
    rows = [
        {"clean": f"{i} a", "corrupt": f"{i} b c d e", "answer": " a", "wrong": " b"}
        for i in range(16)
    ]
    file = tmp_path / "uneven.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    given = {"tasks": f"math,{file}", "methods": "direct,random", "seeds": 2}
    found = leaderboard(**given, out=str(tmp_path / "runs"), **FEW)
    assert [r.task for r in found.result.rounds] == ["math", "math"]
    (warning,) = [words for words in found.result.warnings if words.startswith("Left out")]
    assert f"Left out: mini, {file} (seeds 0 and 1): " in warning
    assert "Warning: Left out" in capsys.readouterr().out
    with pytest.raises(MechheadsError, match=r"No round could be measured\. Left out: mini, "):
        leaderboard(**{**given, "tasks": str(file)}, out=str(tmp_path / "runs"), **FEW)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"models": "minni"}, "No model 'minni'"),
        ({"models": "known/inductoin"}, "Did you mean 'known/induction'"),
        ({"models": "mini,mini"}, "--models lists a model twice"),
        ({"models": "mini,../mini"}, "No such model"),
        ({"models": ","}, "--models takes a list"),
        ({"tasks": "ioi,maths"}, "Did you mean 'math'"),
        ({"tasks": "ioi,ioi"}, "--tasks lists a task twice"),
        ({"tasks": "ioi,known/ioi"}, "Add it to --models, or leave the task out"),
        ({"models": "mini,known/ioi", "tasks": "known/ioi"}, "has no task for mini"),
        ({"methods": "patch,atb"}, "Did you mean 'atp'"),
        ({"methods": "patch"}, "two or more methods to compare, got patch"),
        ({"methods": "patch,patch"}, "--methods lists a method twice"),
        ({"methods": "ig,ig:step=2"}, "method ig has no such option"),
        ({"methods": "ig,ig:steps=two"}, "ig:steps=two: steps takes a whole number"),
        ({"methods": "patch,ensemble:patch"}, "two or more different methods"),
        ({"seeds": 0}, "--seeds takes 1 or more"),
        ({"seeds": 101}, "--seeds takes up to 100"),
        ({"seed": 2**31 - 2}, "leaves no room for 3 seeds"),
        ({"n": 1}, "--n takes 4 or more"),
        ({"test": 1}, "--test takes 4 or more"),
        ({"threshold": 0.0}, "threshold"),
        ({"draws": 1}, "--draws takes 2 or more"),
        ({"split": "dev"}, "--split"),
    ],
)
def test_wrong_input_is_named_before_anything_is_measured(wrong, words, tmp_path, monkeypatch):
    def never(*args, **kwargs):
        raise AssertionError("something was measured")

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("circuits.rank_methods", never)
    with pytest.raises(MechheadsError, match=words):
        leaderboard(**{**FEW, **wrong}, out=str(tmp_path))
    assert not list(tmp_path.iterdir())
