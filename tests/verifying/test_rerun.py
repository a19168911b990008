import json
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
    assert lines[3].endswith("3 of 3 cells give the same numbers")

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
            verify(str(broken), quiet=True)
    with pytest.raises(MechheadsError, match="--tolerance takes 0 or more, got -1"):
        verify(str(swept), tolerance=-1.0)


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
