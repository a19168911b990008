"""A sweep touches only what it made."""

from sweeps import toy_run

from mechheads.sweeping.cells import CELLS, FAILED, is_ours, look
from mechheads.sweeping.grid import Cell


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
