"""A sweep on a real Slurm of one node, which these tests start and stop."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from slurms import missing, running
from sweeps import SMALL, digests

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


def command(out: Path, **flags: str) -> list[str]:
    axes = {"tasks": "ioi,math,syntax", "models": "mini", "partition": "debug"}
    given = {**axes, **SMALL, **flags, "cluster": "slurm", "time": "00:05:00", "out": str(out)}
    return [sys.executable, "-m", "mechheads.sweep", *(f"--{k}={v}" for k, v in given.items())]


def until(true: Callable[[], object]) -> None:
    end = time.monotonic() + 90
    while not true():
        assert time.monotonic() < end
        time.sleep(0.1)


def cells(out: Path) -> dict[str, str]:
    return {name: text for name, text in digests(out).items() if name.startswith("cells")}


def test_an_array_that_is_requeued_goes_on_and_gives_the_same_bytes(env, swept, tmp_path):
    sweeping = subprocess.Popen(
        command(tmp_path, jobs="1"), env=env, stdout=subprocess.PIPE, text=True
    )
    until(lambda: any(tmp_path.glob("cells/[!.]*")))  # the first of three has ended
    (log,) = (tmp_path / "slurm").iterdir()
    task = log.stem
    subprocess.run(["scontrol", "requeue", task], env=env, check=True)
    # Slurm waits two minutes before it starts a requeued job, unless it is told otherwise.
    until(
        lambda: (
            "PENDING"
            in subprocess.run(
                ["squeue", "-h", "-o", "%T"], env=env, capture_output=True, text=True, check=False
            ).stdout
        )
    )
    done = {place.name for place in tmp_path.glob("cells/[!.]*")}
    assert 0 < len(done) < 3
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
    until(lambda: any(tmp_path.glob("cells/[!.]*")))
    sweeping.send_signal(signal.SIGTERM)
    _, said = sweeping.communicate(timeout=60)
    assert (sweeping.returncode, said.splitlines()[-1]) == (143, "mechheads.sweep: terminated.")
    until(
        lambda: (
            not subprocess.run(
                ["squeue", "-h"], env=env, capture_output=True, text=True, check=False
            ).stdout
        )
    )
    assert 0 < len(list(tmp_path.glob("cells/[!.]*"))) < 3
    assert (tmp_path / "index.html").is_file()  # the task has written it when it was cancelled
