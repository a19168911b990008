"""What a killed process leaves behind is cleaned up, and nothing of a stranger's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mechheads.errors import MechheadsError
from mechheads.runs import files
from mechheads.runs.files import (
    HOST,
    alone,
    append_row,
    beside,
    keep_rows,
    recover,
    replace_folder,
    write_text,
)


@pytest.fixture(scope="module")
def dead() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def folder(place: Path, text: str) -> Path:
    place.mkdir()
    write_text(place / "file", text)
    return place


def test_half_a_folder_of_a_dead_process_goes(tmp_path, dead):
    place = tmp_path / "run"
    left = [tmp_path / f".run.{HOST}-{dead}.{kind}" for kind in ("partial", "old")]
    for each in left:
        folder(each, "half")
    folder(place, "whole")
    kept = [tmp_path / name for name in (f".run.other-{dead}.partial", ".run.notes", ".running")]
    kept.append(beside(place, "partial"))  # ours, and we live
    for each in kept:
        folder(each, "mine")
    recover(place)
    assert not any(each.exists() for each in left)
    assert all(each.exists() for each in kept)
    assert (place / "file").read_text() == "whole"


def test_a_finished_folder_that_was_moved_aside_comes_back(tmp_path, dead):
    place = tmp_path / "run"
    folder(tmp_path / f".run.{HOST}-{dead}.old", "finished")
    recover(place)
    assert (place / "file").read_text() == "finished"
    recover(tmp_path / "nowhere" / "run")  # nothing to do


@pytest.mark.parametrize("exchange", [True, False])
def test_a_folder_takes_the_place_of_another(tmp_path, exchange, monkeypatch):
    if not exchange:
        monkeypatch.setattr(files, "_exchange", lambda *_: False)
    place = folder(tmp_path / "run", "old")
    replace_folder(place, folder(tmp_path / "new", "new"))
    assert (place / "file").read_text() == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["run"]
    place = tmp_path / "first"
    replace_folder(place, folder(tmp_path / "new", "new"))
    assert (place / "file").read_text() == "new"


def test_names_are_exchanged_in_one_step_on_linux(tmp_path):
    if not sys.platform.startswith("linux"):
        pytest.skip("renameat2 is Linux's")
    one, two = folder(tmp_path / "one", "1"), folder(tmp_path / "two", "2")
    assert files._exchange(one, two)
    assert (one / "file").read_text() == "2"


def test_one_process_at_a_time(tmp_path):
    wanted = pytest.raises(MechheadsError, match="another process is writing to")
    with alone(tmp_path), wanted, alone(tmp_path):
        pass
    with alone(tmp_path):
        pass


def test_rows_after_the_checkpoint_are_dropped(tmp_path):
    log = tmp_path / "log.csv"
    keep_rows(log, "step", 0)
    assert not log.exists()
    for step in (10, 20, 30):
        append_row(log, {"step": step, "loss": "1,5"})
    whole = log.read_bytes()
    keep_rows(log, "step", 30)
    assert log.read_bytes() == whole
    with log.open("a") as stream:
        stream.write("40")  # killed in the middle of a row
    keep_rows(log, "step", 20)
    append_row(log, {"step": 30, "loss": "1,5"})
    assert log.read_bytes() == whole


def test_a_row_that_cannot_be_written_is_one_error():
    with pytest.raises(MechheadsError, match="cannot write /dev/full"):
        append_row(Path("/dev/full"), {"step": 1})


def test_our_own_process_is_alive():
    assert files._is_alive(os.getpid())
    assert not files._is_alive(2**22 + 1)
