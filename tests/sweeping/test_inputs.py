import json
import shutil
from typing import Any

import pytest
from sweeps import SMALL, digests, toy_run

from mechheads.errors import MechheadsError
from mechheads.models.locate import EMBEDDED
from mechheads.sweep import sweep
from mechheads.sweeping.cells import CELLS, finished
from mechheads.sweeping.grid import Cell, from_flags
from mechheads.sweeping.inputs import with_inputs


def test_a_cell_is_run_again_when_its_task_file_or_its_weights_change(tmp_path):
    task, model = tmp_path / "own.jsonl", tmp_path / "model"
    model.mkdir()
    weights = model / "model.safetensors"
    for file in (task, weights):
        file.write_text("a")
    made = from_flags(["discover"], {"tasks": [str(task)], "models": [str(model)]}, {})
    (cell,) = with_inputs(made)
    toy_run(cell, tmp_path)
    assert finished(tmp_path, cell) is not None
    for file in (task, weights):
        file.write_text("b")
        (changed,) = with_inputs(made)
        assert changed.name == cell.name
        assert finished(tmp_path, changed) is None
        file.write_text("a")
    assert with_inputs(made) == [cell]
    assert dict(with_inputs([Cell("gate", ())])[0].inputs).keys() == {"mini"}  # the default


@pytest.mark.parametrize(("command", "name"), [
    ("discover", "effects"), ("discover", "circuit"), ("mask", "circuit")
])  # fmt: skip
def test_given_effects_and_circuits_count_too(command, name, tmp_path):
    file = tmp_path / "own, and mine.json"
    file.write_text("a")
    made = from_flags([command], {"models": ["mini"]}, {name: str(file)})
    before = with_inputs(made)
    assert dict(before[0].inputs).keys() == {"mini", str(file)}
    file.write_text("b")
    assert with_inputs(made) != before


def test_config_and_tokenizer_of_a_model_count_too(tmp_path):
    model = tmp_path / "model"
    shutil.copytree(EMBEDDED / "mini", model)
    made = from_flags(["discover"], {"models": [str(model)]}, {})
    before = with_inputs(made)
    for name in ("config.json", "tokenizer.json"):
        file = model / name
        whole = file.read_bytes()
        file.write_bytes(whole + b" ")
        assert with_inputs(made) != before
        file.write_bytes(whole)
    assert with_inputs(made) == before


def test_a_run_stays_while_its_inputs_are_missing_and_until_another_is_whole(tmp_path, capsys):
    task = tmp_path / "own.jsonl"
    lines = [
        {"clean": f"The {a} and", "corrupt": f"The {b} and", "answer": f" {a}", "wrong": f" {b}"}
        for a, b in zip(range(10, 22), range(30, 42), strict=True)
    ]
    task.write_text("\n".join(map(json.dumps, lines)))
    given: dict[str, Any] = {"tasks": str(task), "out": str(tmp_path / "s"), "quiet": True, **SMALL}
    sweep(**given)
    before = digests(tmp_path / "s" / CELLS)
    task.rename(tmp_path / "away")
    sweep(**given)
    assert digests(tmp_path / "s" / CELLS) == before
    task.write_text("no JSON")
    with pytest.raises(MechheadsError, match=r"1 of 1 cells failed .*own\.jsonl"):
        sweep(**given)
    assert digests(tmp_path / "s" / CELLS) == before
    task.write_text("\n".join(map(json.dumps, lines[::-1])))
    sweep(**given)
    after = digests(tmp_path / "s" / CELLS)
    assert after.keys() == before.keys()
    assert after != before
