"""Run folders are whole or not there, say what made them, and notice damage."""

import json
import shlex

import pandas as pd
import pytest

from mechheads.cli.commands import COMMANDS
from mechheads.cli.parse import arguments
from mechheads.errors import MechheadsError
from mechheads.jobs.run import flat
from mechheads.models.options import ModelOptions
from mechheads.runs import folder as runs

RECORD = runs.Record(
    "discover", {"task": "ioi", "model": "mini"}, {"n": float("nan")}, {}, ("few prompts",)
)


def write(folder):
    runs.write_table(folder, "numbers.csv", pd.DataFrame({"k": [1, 2], "f": [0.1, 1 / 3]}))


def test_a_run_is_a_folder_with_result_tables_and_timings(tmp_path):
    folder = runs.keep(tmp_path / "run", RECORD, {"seconds": 1.23456}, write)
    assert sorted(f.name for f in folder.iterdir()) == [
        "numbers.csv",
        "result.json",
        "timings.json",
    ]
    assert (folder / "numbers.csv").read_text() == "k,f\n1,0.1\n2,0.333333333\n"
    content = json.loads((folder / "result.json").read_text())
    assert content["schema"] == runs.SCHEMA
    assert content["command"] == "discover"
    assert content["headline"] == {"n": None}
    assert content["warnings"] == ["few prompts"]
    assert list(content["files"]) == ["numbers.csv"]
    again = runs.read_run(folder)
    assert again.settings == RECORD.settings
    assert again.warnings == RECORD.warnings


def test_what_fails_in_the_middle_leaves_nothing(tmp_path):
    def fail(folder):
        write(folder)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runs.keep(tmp_path / "run", RECORD, {}, fail)
    assert list(tmp_path.iterdir()) == []


def test_a_run_of_the_same_settings_replaces_the_older_one(tmp_path):
    for _ in range(2):
        folder = runs.keep(tmp_path / "run", RECORD, {}, write)
    assert list(tmp_path.iterdir()) == [folder]
    runs.read_run(folder)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "numbers.csv").unlink(), "numbers.csv is missing"),
        (lambda f: (f / "numbers.csv").write_text("k\n"), "numbers.csv was changed"),
        (lambda f: (f / "result.json").write_text("{"), "result.json is damaged"),
        (lambda f: (f / "result.json").write_text("[]"), "result.json is damaged"),
        (lambda f: (f / "result.json").unlink(), "is not a run folder"),
    ],
)
def test_damage_is_named(damage, message, tmp_path):
    folder = runs.keep(tmp_path / "run", RECORD, {}, write)
    damage(folder)
    with pytest.raises(MechheadsError, match=message):
        runs.read_run(folder)


def test_runs_of_another_command_or_schema_are_refused(tmp_path):
    folder = runs.keep(tmp_path / "run", RECORD, {}, write)
    with pytest.raises(MechheadsError, match="is a run of discover, not of gate"):
        runs.read_run(folder, "gate")
    content = json.loads((folder / "result.json").read_text()) | {"schema": 99}
    (folder / "result.json").write_text(json.dumps(content))
    with pytest.raises(MechheadsError, match="schema 99"):
        runs.read_run(folder)


def test_folders_are_named_after_what_they_hold_and_all_settings(tmp_path):
    one = runs.folder_for(str(tmp_path), ["ioi", "/some/where/my model", "patch"], {"n": 1})
    two = runs.folder_for(str(tmp_path), ["ioi", "/some/where/my model", "patch"], {"n": 2})
    assert one.parent == tmp_path
    assert one.name.startswith("ioi-my_model-patch-")
    assert one != two
    assert runs.folder_for(str(tmp_path), ["../../x"], {}).parent == tmp_path


def test_the_command_line_gives_the_same_settings_again():
    given = {"task": "ioi", "n": 8, "signed": True, "model": "a b", "steps": "3", "method": "ig"}
    given |= {"prepend_bos": True}
    command = COMMANDS["discover"]
    words = shlex.split(command.line(given))
    assert words[:3] == ["python", "-m", "mechheads.discover"]
    assert arguments(command, words[3:]) == given


def test_settings_hold_no_folders_to_write_to_and_options_among_the_others():
    given = {
        "task": "ioi",
        "out": "x",
        "quiet": True,
        "json": True,
        "options": {"corruption": "s2"},
    }
    assert flat(given) == {"task": "ioi", "corruption": "s2"}
    grouped = flat(given | {"loading": ModelOptions(device="cpu", n_ctx=9)})
    assert "loading" not in grouped
    assert (grouped["device"], grouped["n_ctx"], grouped["dtype"]) == ("cpu", 9, "float32")
