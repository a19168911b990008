"""A sweep touches only what it made."""

import json
from dataclasses import replace

import pytest
from sweeps import toy_run

from mechheads.errors import MechheadsError
from mechheads.runs import folder as runs
from mechheads.sweeping.cells import CELLS, FAILED, INPUTS, finished, is_ours, look, run_cell
from mechheads.sweeping.grid import Cell
from mechheads.sweeping.overview import write_overview


def test_names_that_a_sweep_gives():
    name = Cell("discover", (("task", "ioi"),)).name
    for ours in (name, f".{name}", f"{name}.txt", f".{name}.txt.partial", f".{name}.host-1.old"):
        assert is_ours(ours)
    for other in ("mynotes.txt", ".precious", "discover", "discover-notes.txt", "x-12345678"):
        assert not is_ours(other)


def test_foreign_files_stay(tmp_path):
    cell = Cell("discover", (("task", "ioi"),))
    toy_run(cell, tmp_path)
    for folder in (CELLS, FAILED):
        (tmp_path / folder).mkdir(exist_ok=True)
    precious = tmp_path / CELLS / ".precious"
    precious.mkdir()
    (precious / "file").write_text("mine")
    (tmp_path / FAILED / "mynotes.txt").write_text("mine")
    (tmp_path / FAILED / f"{Cell('gate', ()).name}.txt").write_text("an error of another grid")
    (tmp_path / FAILED / f"{Cell('mask', ()).name}.txt").mkdir()
    (tmp_path / CELLS / f".{Cell('gate', ()).name}").mkdir()
    swept = look([cell, Cell("mask", ())], tmp_path)
    assert list(swept.runs) == [cell]
    assert (precious / "file").read_text() == "mine"
    assert sorted(p.name for p in (tmp_path / FAILED).iterdir()) == [
        f"{Cell('mask', ()).name}.txt",
        "mynotes.txt",
    ]
    assert not (tmp_path / CELLS / f".{Cell('gate', ()).name}").exists()


@pytest.mark.parametrize("text", ["[]", "5", "[" * 100_000, '{"mini": 5}', "x"], ids=len)
def test_inputs_that_cannot_be_are_changed_inputs(text, tmp_path):
    cell = Cell("discover", (("task", "ioi"),), (("mini", "abc"),))
    place = toy_run(cell, tmp_path)
    assert finished(tmp_path, cell)
    (place.parent / INPUTS).write_text(text)
    assert finished(tmp_path, cell) is None


def test_a_run_with_other_settings_is_not_the_cells(tmp_path):
    cell = Cell("discover", (("task", "ioi"),))
    place = tmp_path / CELLS / cell.name
    place.mkdir(parents=True)
    for settings, ours in (
        ({"task": "ioi", "seed": 0}, True),
        ({"task": "ioi", "seed": 7}, False),
        ({"task": "math"}, False),
    ):
        record = runs.Record("discover", settings, {"needed": 1}, {})
        runs.keep(place / "run", record, {}, lambda folder: None)
        assert (finished(tmp_path, cell) is not None) == ours


def test_what_is_no_folder_is_in_the_way(tmp_path):
    cell = Cell("discover", (("task", "nope"),))
    (tmp_path / CELLS).mkdir()
    (tmp_path / CELLS / cell.name).write_text("mine")
    with pytest.raises(MechheadsError, match="is in the way: it is no folder of ours"):
        runs.replace_folder(tmp_path / CELLS / cell.name, tmp_path)
    assert run_cell(cell, tmp_path).error
    assert (tmp_path / CELLS / cell.name).read_text() == "mine"


HEADLINES = [{}, {"parts": [1]}, {"parts": {"a": 5}}, {"parts": {}}, {"needed": ["<b>"]}]
TABLES = [b"", b"k\n", b"k,explained\nx,y\n", b"k,k\n1,2\n", b"\xff\x00", b"explained,k\n"]


@pytest.mark.parametrize("table", TABLES, ids=str)
@pytest.mark.parametrize("headline", HEADLINES, ids=str)
def test_a_strangers_runs_are_shown_as_far_as_they_can_be(headline, table, tmp_path):
    good, bad = (Cell("discover", (("task", task),)) for task in ("ioi", "math"))
    for cell in (good, bad):
        toy_run(cell, tmp_path)
    swept = look([good, bad], tmp_path)
    (swept.runs[good].folder / "curve.csv").write_text("k,explained\n0,0\n1,0.5\n")
    (swept.runs[bad].folder / "curve.csv").write_bytes(table)
    swept.runs[bad] = replace(
        swept.runs[bad], record=replace(swept.runs[bad].record, headline=headline)
    )
    page = write_overview(swept, "again").read_text()
    assert "2 of 2 cells are done" in page
    assert '"name":"discover"' in page or '"name":"ioi"' in page
    assert "<b></td>" not in page
    assert len(json.loads((tmp_path / "sweep.json").read_text())) == 2
