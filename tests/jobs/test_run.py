import gc
import importlib
import json
from pathlib import Path

import pytest

from mechheads.cli.commands import COMMANDS
from mechheads.compare import compare
from mechheads.discover import discover
from mechheads.errors import MechheadsError
from mechheads.gate import gate
from mechheads.jobs.run import JOBS, flat
from mechheads.leaderboard import leaderboard
from mechheads.mask import mask
from mechheads.models.options import ModelOptions
from mechheads.packages import no_garbage_collection
from mechheads.prefix import prefix

SMALL = {
    discover: {"task": "math", "n": 4, "test": 4, "draws": 2},
    compare: {"tasks": "math", "n": 4, "test": 4, "draws": 2},
    leaderboard: {"tasks": "math", "n": 4, "test": 4, "seeds": 2, "methods": "direct,random"},
    gate: {"n": 8, "test": 8, "seeds": 1, "updates": 20, "points": 3},
    mask: {"tasks": "retrieval", "n": 4, "rank": 4, "k": "2", "draws": 1, "max_tokens": 2},
    prefix: {"n": 16, "length": 4, "max_tokens": 2},
}


@pytest.mark.parametrize("command", SMALL, ids=[c.__name__ for c in SMALL])
def test_json_is_one_object_and_a_command_returns_its_result_and_folder(command, tmp_path, capsys):
    result, folder = command(**SMALL[command], out=str(tmp_path), quiet=True, json=True)
    printed = json.loads(capsys.readouterr().out)
    stored = json.loads((folder / "result.json").read_text())
    assert printed["command"] == stored["command"] == command.__name__
    assert printed["headline"] == stored["headline"]
    assert printed["warnings"] == stored["warnings"] == list(result.warnings)
    assert printed["sentence"] == result.sentence
    assert Path(printed["folder"]) == folder
    # The same result again, from the folder: every number, and so every word.
    again = type(result).load(folder)
    assert again.sentence == result.sentence
    assert again.frame().equals(result.frame())
    assert result.sentence.split()[0] in result._repr_html_()


def test_every_command_that_measures_can_print_json():
    assert {name for name, command in COMMANDS.items() if "json" not in command.flags} == {"fetch"}


def test_every_job_belongs_to_a_command_that_can_be_verified():
    assert set(JOBS) == {name for name, command in COMMANDS.items() if command.measures}


def test_settings_are_flat_and_say_nothing_of_where_to_write():
    given = {"n": 4, "out": "x", "quiet": True, "json": False, "options": {"shots": "2"}}
    settings = flat({**given, "loading": ModelOptions(dtype="float64")})
    assert settings.pop("dtype") == "float64"
    assert {"n": 4, "shots": "2"}.items() <= settings.items()
    assert not {"out", "quiet", "json", "options", "loading"} & set(settings)


def test_garbage_is_collected_again_after_imports_even_if_they_fail():
    with no_garbage_collection():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ModuleNotFoundError), no_garbage_collection():
        importlib.import_module("there_is_none")
    assert gc.isenabled()


def test_a_refused_run_leaves_no_folder_and_removes_none_that_was_there(tmp_path):
    there = tmp_path / "there"
    there.mkdir()
    for out in (there / "new" / "runs", there):
        with pytest.raises(MechheadsError, match="--points takes"):
            discover(task="math", points="1", out=str(out), quiet=True)
    assert there.is_dir()
    assert not any(there.iterdir())
