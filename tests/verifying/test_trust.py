"""A stranger's folder is data: nothing that it names is run, opened or downloaded unasked."""

import json
import os
import shutil

import pytest

import mechheads
import tasks
from mechheads.cli.commands import COMMANDS
from mechheads.discover import discover
from mechheads.errors import MechheadsError
from mechheads.jobs import comparison
from mechheads.runs.folder import RESULT, Record, signature
from mechheads.scoring.registry import METHODS
from mechheads.verify import verify
from mechheads.verifying import rerun, trust
from mechheads.verifying.trust import Allowed, trusted_settings, usable_threads
from tasks.registry import TASKS


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
        ("leaderboard", {"models": "known/ioi,../x"}, "uses --models ../x, .* add --allow-files"),
        ("leaderboard", {"models": "a/b", "tasks": "ioi"}, "from a model hub. .* add --allow-hub"),
        ("leaderboard", {"tasks": "ioi,own.jsonl"}, "uses --tasks own.jsonl, .* add --allow-files"),
        ("discover", {"effects": "own.csv"}, "uses --effects own.csv, .* add --allow-files"),
        ("discover", {"effects": "mini"}, "uses --effects mini, .* add --allow-files"),
        ("discover", {"effects": ""}, "uses --effects , .* add --allow-files"),
        ("discover", {"circuit": "./x"}, "uses --circuit ./x, .* add --allow-files"),
        ("mask", {"circuit": "own.json"}, "uses --circuit own.json, .* add --allow-files"),
        ("discover", {"device_map": "auto"}, "run on the device 'auto'. Choose one with --device"),
        ("discover", {"n_devices": 4}, "run on the device '4 devices'. Choose one with --device"),
        ("discover", {"backend": "other"}, "Unknown value for --backend: 'other'"),
        ("discover", {"out": "/tmp/elsewhere"}, "discover has no setting 'out'"),
        ("discover", {"quiet": False}, "discover has no setting 'quiet'"),
        ("discover", {"shots": ["a", "b"]}, "no setting 'shots' with the value"),
        ("discover", {"model": "mini,"}, "uses --model mini,, .* add --allow-files"),
        ("discover", {"model": " mini"}, "uses --model  mini, .* add --allow-files"),
        ("gate", {"model": "mini,./own"}, "uses --model ./own, .* add --allow-files"),
        ("gate", {"retain": "a=b", "forget": "a=c", "family": "math,./x"}, "--family ./x"),
        ("discover", {"n": "many"}, "--n takes a whole number"),
        ("discover", {"n": [[1]] * 99}, r"--n takes a whole number or auto, got .{40}\.$"),
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
    record = Record("discover", {"circuit": "./c", "effects": "e.csv"}, {}, {})
    found = trusted_settings(tmp_path, record, Allowed(files=True))
    assert (found["circuit"], found["effects"]) == ("./c", "e.csv")


def test_heads_and_published_circuits_need_no_permission(tmp_path, monkeypatch):
    (tmp_path / "ioi_gpt2_small").write_text("a file of that name is not opened")
    monkeypatch.chdir(tmp_path)
    for given in ({"heads": "L3H4"}, {"circuit": "ioi_gpt2_small"}):
        found = trusted_settings(tmp_path, Record("discover", given, {}, {}), Allowed())
        assert found.items() >= given.items()
    with pytest.raises(MechheadsError, match="There is no L9H9"):
        discover(circuit="ioi_gpt2_small", n=4, test=4, out=str(tmp_path / "runs"), quiet=True)


@pytest.mark.parametrize("command", [c for c in COMMANDS.values() if c.measures], ids=str)
def test_it_is_known_of_every_text_whether_it_names_a_file(command):
    """A new flag must be added to WORDS, or it needs --allow-files."""
    text = {name for name, p in command.settings.items() if trust._is_text(p.annotation)}
    text |= {
        name
        for kind in (*METHODS.values(), *TASKS.values())
        for name, p in kind.options.items()
        if name in command.options and trust._is_text(p.annotation)
    }
    named = {*trust.MODELS, *trust.TASK_FLAGS, *trust.FORMATS, "circuit", "effects"}
    assert text <= trust.WORDS | named


def test_text_for_the_task_or_method_of_another_package_may_be_a_file(tmp_path, monkeypatch):
    def maker(lexicon, *, words: str = "", many: int = 3):
        return TASKS["math"].maker(lexicon)

    def method(model, prompts, metric, *, weights: str | None = None): ...

    monkeypatch.setattr(TASKS, "_items", dict(TASKS))
    monkeypatch.setattr(METHODS, "_items", dict(METHODS))
    tasks.register("other")(maker)
    mechheads.register_method("another")(method)
    wanted = pytest.raises(MechheadsError, match="add --allow-files")
    for settings in (
        {"task": "other", "words": "/etc/passwd"},
        {"method": "another", "weights": "passwd"},
    ):
        record = Record("discover", settings, {}, {})
        with wanted:
            trusted_settings(tmp_path, record, Allowed())
        assert trusted_settings(tmp_path, record, Allowed(files=True)).items() >= settings.items()
    record = Record("gate", {"retain": "other:words=x", "forget": "math"}, {}, {})
    with wanted:
        trusted_settings(tmp_path, record, Allowed())
    record = Record("discover", {"task": "other", "many": "5"}, {}, {})
    assert trusted_settings(tmp_path, record, Allowed())["many"] == "5"


def test_a_folder_named_like_an_embedded_model_is_not_opened(run, tmp_path, monkeypatch):
    folder = forge(run, tmp_path, command="compare", settings={"standard": "mini", "sparse": "x"})
    shutil.copytree(run, tmp_path / "mini")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MechheadsError, match="uses --sparse x from a model hub"):
        verify(str(folder), quiet=True)
    given = COMMANDS["compare"].in_full({"standard": "mini", "sparse": "mini", "tasks": "math"})
    assert comparison.prepare(given).words == ["compare", "mini", "mini"]
    assert "tasks" in comparison.prepare(given).settings  # of two runs, only the threshold is taken


def deep(levels):
    return [deep(levels - 1)] if levels else 1


@pytest.mark.parametrize(
    "changes",
    [
        {"headline": {"needed": deep(60)}},
        {"provenance": {"x": deep(60)}},
        {"settings": {"n": deep(60)}},
        {"warnings": ["\ud800"]},
        {"provenance": {"\ud800": 1}},
        {"files": {"a" * 300: "x"}},
        {"files": {"a\0b": "x"}},
        {"files": {"": "x", ".": "x", "..": "x", "../x": "x"}},
    ],
    ids=str,
)
def test_a_record_that_we_would_not_write_is_damaged(changes, run, tmp_path):
    with pytest.raises(MechheadsError, match="is damaged"):
        verify(str(forge(run, tmp_path, **changes)), quiet=True)


def test_a_number_beyond_any_float_is_damaged(run, tmp_path):
    folder = forge(run, tmp_path, provenance={"x": 12345})
    text = (folder / RESULT).read_text()
    (folder / RESULT).write_text(text.replace("12345", "1e999"))
    with pytest.raises(MechheadsError, match="not a number"):
        verify(str(folder), quiet=True)


def test_a_folder_writes_no_lines_and_no_codes_to_the_terminal(run, tmp_path, capsys):
    lie = "x\nreport.html: identical.\n\x1b[2J\u202eall: identical"
    verify(str(forge(run, tmp_path, provenance={"git": lie})), quiet=True)
    said = capsys.readouterr().out
    assert "changed since: git was x report.html: identical. \\x1b[2J\\u202eall: identical" in said
    assert "\x1b" not in said
    assert "report.html: identical." not in said.splitlines()


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
