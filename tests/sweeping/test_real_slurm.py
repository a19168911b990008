"""A sweep on a real Slurm of one node, which these tests start and stop."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from slurms import left_behind, missing, running
from sweeps import SMALL, digests

from mechheads.errors import MechheadsError
from mechheads.sweep import sweep

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "Slurm is there")


@pytest.fixture(scope="module")
def env(tmp_path_factory) -> Iterator[dict[str, str]]:
    """The environment in which Slurm's programs find its controller."""
    place = tmp_path_factory.mktemp("slurm")
    with pytest.MonkeyPatch.context() as patched:
        try:
            with running(place) as config:
                patched.setenv("SLURM_CONF", str(config))
                yield dict(os.environ)
        except RuntimeError as error:
            pytest.skip(str(error))
    assert not left_behind(place / "slurm.conf")


def command(out: Path, **flags: str) -> list[str]:
    axes = {"tasks": "ioi,math,syntax", "models": "mini", "methods": "patch", "partition": "debug"}
    given = {**axes, **SMALL, **flags, "cluster": "slurm", "time": "00:05:00", "out": str(out)}
    words = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
    return [sys.executable, "-m", "mechheads.sweep", *words]


def until(true: Callable[[], object]) -> None:
    end = time.monotonic() + 90
    while not true():
        assert time.monotonic() < end
        time.sleep(0.1)


def queue(env: dict[str, str]) -> str:
    """The states of all jobs."""
    return subprocess.run(
        ["squeue", "-h", "-o", "%T"], env=env, capture_output=True, text=True, check=False
    ).stdout


def cells(out: Path) -> dict[str, str]:
    return {name: text for name, text in digests(out).items() if name.startswith("cells")}


def finished(out: Path) -> list[str]:
    return [place.name for place in out.glob("cells/[!.]*")]


def test_an_array_that_is_requeued_goes_on_and_gives_the_same_bytes(env, swept, tmp_path):
    sweeping = subprocess.Popen(
        command(tmp_path, jobs="1"), env=env, stdout=subprocess.PIPE, text=True
    )
    until(lambda: finished(tmp_path))  # the first of three has ended
    (log,) = (tmp_path / "slurm").iterdir()
    task = log.stem
    subprocess.run(["scontrol", "requeue", task], env=env, check=True)
    # Slurm waits two minutes before it starts a requeued job, unless it is told otherwise.
    until(lambda: "PENDING" in queue(env))
    assert 0 < len(finished(tmp_path)) < 3
    subprocess.run(["scontrol", "update", f"JobId={task}", "StartTime=now"], env=env, check=True)
    said, _ = sweeping.communicate(timeout=240)
    assert (sweeping.returncode, said.splitlines()[-1]) == (0, str(tmp_path / "index.html"))
    assert cells(tmp_path) == cells(swept)
    lines = (tmp_path / "log.txt").read_text().splitlines()
    assert len(lines) == len({line.split()[2] for line in lines}) == 3  # no cell ran twice


def test_terminated_it_cancels_the_tasks_and_what_is_finished_stays(env, tmp_path):
    sweeping = subprocess.Popen(
        command(tmp_path, jobs="1"), env=env, stderr=subprocess.PIPE, text=True
    )
    until(lambda: finished(tmp_path))
    sweeping.send_signal(signal.SIGTERM)
    _, said = sweeping.communicate(timeout=60)
    assert (sweeping.returncode, said.splitlines()[-1]) == (143, "mechheads.sweep: terminated.")
    until(lambda: not queue(env))
    assert 0 < len(finished(tmp_path)) < 3
    assert (tmp_path / "index.html").is_file()  # the task has written it when it was cancelled


def test_without_waiting_it_ends_at_once_and_a_later_call_gathers(env, tmp_path, capsys):
    file, out = tmp_path / "uneven.jsonl", tmp_path / "out"
    rows = [
        {"clean": f"{i} a", "corrupt": f"{i} b c d e", "answer": " a", "wrong": " b"}
        for i in range(16)
    ]
    file.write_text("\n".join(map(json.dumps, rows)))
    given: dict[str, Any] = {**SMALL, "tasks": f"ioi,{file}", "models": "mini", "out": str(out)}
    given |= {"cluster": "slurm", "partition": "debug", "methods": "direct", "quiet": True}
    sweep(jobs=2, no_wait=True, **given)
    assert not finished(out)
    assert "0 of 2 cells done" in (said := capsys.readouterr().out)
    assert "the others in 2 tasks" in said
    until(lambda: not queue(env))
    (done,) = finished(out)
    assert "uneven" in (out / "index.html").read_text()  # the last task has written it
    # Only the cell that failed runs again, and its error is told.
    with pytest.raises(MechheadsError, match=r"1 of 2 cells failed .*uneven.*tokens"):
        sweep(**given)
    assert finished(out) == [done]
    names = [line.split()[2] for line in (out / "log.txt").read_text().splitlines()]
    assert (names.count(done), len(names)) == (1, 3)


def test_a_slurm_that_is_left_by_an_error_leaves_no_process(env, tmp_path):
    def use(config: Path) -> None:
        own = {**env, "SLURM_CONF": str(config)}
        given = ["sbatch", "--wrap=sleep 600", "--output=/dev/null"]
        subprocess.run(given, env=own, stdout=subprocess.DEVNULL, check=True)
        until(lambda: "RUNNING" in queue(own))
        assert len(left_behind(config)) >= 5  # three daemons, and the job with its step
        assert not queue(env)  # the other Slurm is another one
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), running(tmp_path) as config:
        use(config)
    assert not left_behind(tmp_path / "slurm.conf")


def test_a_partition_that_is_not_there_is_one_line(env, tmp_path):
    with pytest.raises(MechheadsError, match=r"did not take the sweep \(.*partition.*\)") as error:
        sweep(tasks="math", cluster="slurm", partition="gpu", out=str(tmp_path), quiet=True)
    assert "\n" not in str(error.value)
    assert not queue(env)
