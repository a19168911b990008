"""A stranger's folder is data: nothing that it names is run, opened or downloaded unasked."""

import json
import os
import shutil

import pytest

from mechheads.discover import discover
from mechheads.errors import MechheadsError
from mechheads.runs.folder import RESULT, Record, signature
from mechheads.verify import verify
from mechheads.verifying import rerun
from mechheads.verifying.trust import Allowed, trusted_settings, usable_threads


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A small run."""
    _, folder = discover(
        task="math", n=4, test=4, draws=2, out=str(tmp_path_factory.mktemp("runs")), quiet=True
    )
    return folder


def forge(run, tmp_path, **changes):
    """A copy of the run whose result.json says something else, with a valid signature."""
    folder = tmp_path / "forged"
    shutil.copytree(run, folder)
    content = json.loads((folder / RESULT).read_text()) | changes
    record = Record(
        content["command"],
        content["settings"],
        content["headline"],
        content["provenance"],
        tuple(content["warnings"]),
    )
    content["signature"] = signature(record, content["files"])
    (folder / RESULT).write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize("command", ["sweep", "sparsify", "train_mini", "fetch", "os", "x" * 500])
def test_only_commands_that_measure_are_rerun(command, run, tmp_path, monkeypatch):
    monkeypatch.setattr(rerun, "run_job", None)  # would be a TypeError
    with pytest.raises(MechheadsError, match=r"which cannot be verified\. Only discover"):
        verify(str(forge(run, tmp_path, command=command, settings={})), quiet=True)


@pytest.mark.parametrize(
    ("command", "settings", "message"),
    [
        ("mask", {"metrics": "comet", "comet_command": "/bin/sh -c 'touch {tmp}'"}, "COMET"),
        ("discover", {"device": "cuda:7"}, "was run on the device 'cuda:7'. Choose one with"),
        ("discover", {"task": "own.jsonl"}, "uses --task own.jsonl, .* add --allow-files"),
        ("discover", {"model": "./own"}, "uses --model ./own, .* add --allow-files"),
        ("discover", {"model": "someone/else"}, "from a model hub. .* add --allow-hub"),
        ("gate", {"retain": "own.jsonl:a=b", "forget": "math"}, "--retain own.jsonl:a=b"),
        ("compare", {"standard": "../a", "sparse": "../b"}, "--standard ../a, --sparse ../b"),
        ("prefix", {"models": "mini,/etc"}, "--models /etc"),
        ("discover", {"out": "/tmp/elsewhere"}, "discover has no setting 'out'"),
        ("discover", {"quiet": False}, "discover has no setting 'quiet'"),
        ("discover", {"shots": ["a", "b"]}, "no setting 'shots' with the value"),
        ("discover", {"n": "many"}, "--n takes a whole number"),
        ("discover", {"k": [1]}, "--k takes a whole number"),
    ],
)
def test_what_a_folder_names_is_listed_and_not_used(
    command, settings, message, run, tmp_path, monkeypatch
):
    monkeypatch.setattr(rerun, "run_job", None)
    with pytest.raises(MechheadsError, match=message):
        verify(str(forge(run, tmp_path, command=command, settings=settings)), quiet=True)


def test_what_the_user_allows_is_used(tmp_path):
    record = Record("mask", {"metrics": "comet,exact", "comet_command": "evil"}, {}, {})
    found = trusted_settings(tmp_path, record, Allowed(comet_command="comet-score"))
    assert found["comet_command"] == "comet-score"
    record = Record("mask", {"comet_command": "evil"}, {}, {})
    assert trusted_settings(tmp_path, record, Allowed())["comet_command"] == "comet-score"
    record = Record("discover", {"model": "./m", "task": "t.jsonl", "device": "cuda"}, {}, {})
    found = trusted_settings(tmp_path, record, Allowed(files=True, device="cpu"))
    assert (found["model"], found["task"], found["device"]) == ("./m", "t.jsonl", "cpu")


def test_threads_are_no_more_than_the_machine_has():
    assert usable_threads(1) == 1
    assert usable_threads(100_000) == os.cpu_count()
    for wrong in (0, -1, None, "2", True, 1.5):
        assert usable_threads(wrong) is None


def test_a_sweep_cannot_point_outside_of_its_folder(run, tmp_path):
    (tmp_path / "sweep" / "cells").mkdir(parents=True)
    for report in (f"{run}/report.html", "../../x/report.html", "cells/../../x/report.html"):
        rows = [{"command": "discover", "cell": "x", "report": report}]
        (tmp_path / "sweep" / "sweep.json").write_text(json.dumps(rows))
        with pytest.raises(MechheadsError, match="is not below cells/"):
            verify(str(tmp_path / "sweep"), quiet=True)
