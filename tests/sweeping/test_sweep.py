"""Sweeps survive being killed, full disks and failing cells."""

import json
import random
import resource
import signal
import subprocess
import time
from typing import Any

import pytest
from sweeps import SEEDS, SMALL, digests

from mechheads.errors import MechheadsError
from mechheads.runs.files import alone
from mechheads.sweep import sweep


def test_a_second_time_nothing_runs_again(swept):
    before = digests(swept)
    log = (swept / "log.txt").read_text()
    given: dict[str, Any] = {"models": "mini", "methods": "patch", **SMALL}
    sweep(tasks="ioi,math,syntax", cpus=1.0, out=str(swept), quiet=True, **given)
    assert digests(swept) == before
    assert (swept / "log.txt").read_text() == log


def test_a_failing_cell_does_not_stop_the_others(tmp_path, capsys):
    given: dict[str, Any] = {"models": "mini", "out": str(tmp_path), **SMALL}
    with pytest.raises(MechheadsError, match=r"1 of 2 cells failed .*nowhere.jsonl"):
        sweep(tasks="nowhere.jsonl,math", **given)
    page = (tmp_path / "index.html").read_text()
    assert "1 of 2 cells are done, 1 failed" in page
    assert "nowhere.jsonl" in page
    (note,) = (tmp_path / "failed").iterdir()
    log = (tmp_path / "log.txt").read_text().splitlines()
    assert [("failed: " in line, line.endswith("done")) for line in log] == [
        (True, False),
        (False, True),
    ]
    told = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[0] for line in told] == ["0 of 2 done", "1 of 2 done"]
    # The next sweep has no such cell: its error is forgotten, and so is half a file.
    note.with_name(f".{note.name}.partial").touch()
    sweep(tasks="math", quiet=True, **given)
    assert capsys.readouterr().err == ""
    assert not list((tmp_path / "failed").iterdir())


def test_two_sweeps_do_not_write_to_one_folder(tmp_path):
    with alone(tmp_path), pytest.raises(MechheadsError, match="another process is writing to"):
        sweep(tasks="math", out=str(tmp_path), quiet=True)
    with alone(tmp_path):
        pass


STOPS = (
    (signal.SIGKILL, -signal.SIGKILL, ""),
    (signal.SIGINT, 130, "mechheads.sweep: interrupted.\n"),
    (signal.SIGTERM, 143, "mechheads.sweep: terminated.\n"),
)


def test_stopped_at_random_moments_it_loses_nothing_and_repeats_nothing(toy, tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    subprocess.run([*toy, str(whole)], check=True, stdout=subprocess.DEVNULL)
    rng, done, grown, partial = random.Random(0), set(), 0, 0
    for i in range(20):
        process = subprocess.Popen(
            [*toy, str(broken)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        time.sleep(rng.random() * 0.2)
        stop, code, word = STOPS[i % 3]
        process.send_signal(stop)
        _, said = process.communicate()
        assert process.returncode == code
        assert said == word
        now = {p.parents[1].name for p in broken.glob("cells/[!.]*/[!.]*/result.json")}
        assert done <= now  # nothing that was finished is lost
        grown += done < now
        partial += any(broken.glob("cells/.*"))
        done = now
        if word:
            rows = json.loads((broken / "sweep.json").read_text())
            counted = sum(row["state"] == "done" for row in rows)
            assert counted in (len(done), len(done) - 1)  # the last may not have been taken in
    assert 0 < len(done) < SEEDS
    assert grown > 5
    assert partial > 5
    subprocess.run([*toy, str(broken)], check=True, stdout=subprocess.DEVNULL)
    assert digests(broken) == digests(whole)
    assert {"index.html", "sweep.json"} < set(digests(whole))
    # A cell that was logged as done is in the log once: none was run twice after it was recorded.
    lines = [line.split()[2] for line in (broken / "log.txt").read_text().splitlines()]
    assert len(lines) == len(set(lines))


def test_on_a_full_disk_cells_fail_in_one_line_and_are_done_the_next_time(toy, tmp_path):
    whole, full = tmp_path / "whole", tmp_path / "full"
    subprocess.run([*toy, str(whole)], check=True, stdout=subprocess.DEVNULL)
    for most in (0, 1000):  # bytes in a file: not even a line of the log; no table, no overview
        stopped = subprocess.run(
            [*toy, str(full)],
            preexec_fn=lambda most=most: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most)),
            capture_output=True,
            text=True,
        )
        assert stopped.returncode == 2
        assert f"{SEEDS} of {SEEDS} cells failed" in stopped.stderr
        assert stopped.stderr.count("\n") == 1
    subprocess.run([*toy, str(full)], check=True, stdout=subprocess.DEVNULL)
    assert digests(full) == digests(whole)


def test_a_log_that_cannot_be_written_counts_and_loses_no_run(tmp_path):
    given: dict[str, Any] = {"tasks": "math", "out": str(tmp_path), "quiet": True, **SMALL}
    log = tmp_path / "log.txt"
    log.symlink_to("/dev/full")
    with pytest.raises(MechheadsError, match=r"1 of 1 cells failed .*No space left"):
        sweep(**given)
    log.unlink()
    sweep(**given)
    assert not log.exists()  # nothing was left to run
