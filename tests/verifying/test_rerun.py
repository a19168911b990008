import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from sweeps import SMALL

from mechheads.errors import MechheadsError
from mechheads.models.devices import with_threads
from mechheads.sweep import sweep
from mechheads.verify import verify
from mechheads.verifying import rerun


@pytest.fixture(scope="module")
def swept(tmp_path_factory) -> Path:
    """A finished sweep of three cells."""
    out = tmp_path_factory.mktemp("sweep")
    sweep(tasks="ioi,math,syntax", models="mini", cpus=1.0, out=str(out), quiet=True, **SMALL)
    return out


def test_a_sweep_is_verified_cell_by_cell_with_the_threads_it_had(swept, tmp_path, capsys):
    threads = []

    def run_job(*given: Any) -> Any:
        threads.append(torch.get_num_threads())
        return plain(*given)

    plain = rerun.run_job
    with pytest.MonkeyPatch.context() as patched, with_threads(2):
        patched.setattr(rerun, "run_job", run_job)
        verify(str(swept), quiet=True)
    assert threads == [1, 1, 1]
    lines = capsys.readouterr().out.splitlines()
    assert [line.rpartition(": ")[2] for line in lines[:3]] == ["identical"] * 3
    assert lines[-1].endswith("3 of 3 cells give the same numbers")

    broken = tmp_path / "broken"
    shutil.copytree(swept, broken)
    rows = json.loads((broken / "sweep.json").read_text())
    (broken / rows[0]["report"]).unlink()
    del rows[1]["report"]
    (broken / "sweep.json").write_text(json.dumps(rows))
    with pytest.raises(MechheadsError, match=r"2 of 3 cells .* failed.*report.html is missing"):
        verify(str(broken), quiet=True)
    lines = capsys.readouterr().out.splitlines()
    assert "has no run. The overview says why" in lines[1]
    assert lines[2].endswith("identical")
    for damaged in ("[1]", "[]", "[", '[{"command": "discover", "cell": "x", "report": 5}]'):
        (broken / "sweep.json").write_text(damaged)
        with pytest.raises(MechheadsError, match=r"sweep.json is damaged.*Start the sweep again"):
            verify(str(broken), quiet=True, json=True)
        printed = json.loads(capsys.readouterr().out)
        assert not printed["headline"]["same"]
        assert "is damaged" in printed["sentence"] == printed["warnings"][0]
    with pytest.raises(MechheadsError, match="--tolerance takes 0 or more, got -1"):
        verify(str(swept), tolerance=-1.0)


def change(**said):
    return lambda rows: rows[0].update(said)


def swap(rows):
    rows[0]["report"], rows[1]["report"] = rows[1]["report"], rows[0]["report"]


LIES = {
    "headline": (change(headline={"needed": 1}), "its headline in sweep.json is not that of"),
    "warnings": (change(warnings=["all is well"]), "its warnings in sweep.json is not that of"),
    "command": (change(command="gate"), "its run is one of discover with other settings"),
    "nonsense": (change(command="nope"), "its run is one of discover with other settings"),
    "label": (change(cell="task gpt2"), "its run is one of discover with other settings"),
    "swapped": (swap, "its run is one of discover with other settings"),
    "one run twice": (lambda rows: rows[0].update(report=rows[1]["report"]), "a run twice"),
    "one cell twice": (lambda rows: rows.append(dict(rows[0], report=None)), "a cell or a run"),
}


@pytest.mark.parametrize("lie", LIES)
def test_an_overview_that_says_otherwise_than_its_runs_is_different(
    lie, swept, tmp_path, monkeypatch
):
    monkeypatch.setattr(rerun, "repeat", lambda folder, tolerance, *_: SAME)
    shutil.copytree(swept, folder := tmp_path / "lying")
    edit, message = LIES[lie]
    rows = json.loads((folder / "sweep.json").read_text())
    edit(rows)
    (folder / "sweep.json").write_text(json.dumps(rows))
    with pytest.raises(MechheadsError, match=message):
        verify(str(folder), quiet=True)


SAME = rerun.Verdict(Path(), {"all": rerun.Difference(0.0)}, [], [], 0.0)


def test_what_was_not_compared_is_listed(swept, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(rerun, "repeat", lambda folder, tolerance, *_: SAME)
    shutil.copytree(swept, folder := tmp_path / "sweep")
    rows = json.loads((folder / "sweep.json").read_text())
    (folder / "sweep.json").write_text(json.dumps(rows[1:]))
    verify(str(folder), quiet=True)
    *_, others, index, last = capsys.readouterr().out.splitlines()
    assert re.match(r"discover-ioi-mini.* in cells/: not verified: not part of sweep.json", others)
    assert index.startswith("index.html: not verified")
    assert last.endswith("2 of 2 cells give the same numbers")


def test_a_bug_in_one_cell_does_not_stop_the_verification_of_others(swept, monkeypatch, capsys):
    plain = rerun.run_job

    def run_job(name: str, settings: Any, *given: Any) -> Any:
        if settings["task"] == "ioi":
            raise RuntimeError("out of memory")
        return plain(name, settings, *given)

    monkeypatch.setattr(rerun, "run_job", run_job)
    with pytest.raises(MechheadsError, match="1 of 3 cells"):
        verify(str(swept), quiet=True)
    first, *others = capsys.readouterr().out.splitlines()
    assert "RuntimeError: out of memory (test_rerun.py:" in first
    assert [line.rpartition(": ")[2] for line in others] == ["identical"] * 2
