"""A sweep on Slurm; here, programs stand in for sbatch, squeue and scancel."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from sweeps import SMALL, digests

from mechheads.errors import MechheadsError
from mechheads.sweep import sweep
from mechheads.sweeping import slurm

TASKS = {"tasks": "math,ioi", "models": "mini", "methods": "attribution"}
# sbatch notes what it was given and runs every task before it answers: in real life they go on.
SBATCH = """#!{python}
import json, os, subprocess, sys
from pathlib import Path
place = Path(__file__).parent
script = sys.stdin.read()
(place / "given.json").write_text(json.dumps([sys.argv[1:], script, os.getcwd()]))
options = dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word)
states = {{}}
for i in options["--array"].split(","):
    log = options["--output"].replace("%A", "17").replace("%a", i).replace("%%", "%")
    code = 1
    if not (place / "broken").exists():
        with open(log, "w") as stream:
            code = subprocess.run(
                ["sh"], input=script, text=True, stdout=stream, stderr=stream,
                env={{**os.environ, "SLURM_ARRAY_TASK_ID": i}},
            ).returncode
    states[i] = "TIMEOUT" if (place / "broken").exists() else "FAILED" if code else "COMPLETED"
(place / "states").write_text("".join(f"{{i}} {{s}}\\n" for i, s in states.items()))
print("17;cluster")
"""
SQUEUE = """#!/bin/sh
cd "$(dirname "$0")"
if [ -e pending ]; then echo "1 PENDING"; else cat states; fi
"""
SCANCEL = """#!/bin/sh
echo "$@" > "$(dirname "$0")/cancelled"
"""


@pytest.fixture
def fake(tmp_path, monkeypatch) -> Path:
    """A folder with a sbatch, squeue and scancel that are first on PATH."""
    place = tmp_path / "bin"
    place.mkdir()
    sbatch = SBATCH.format(python=sys.executable)
    for name, text in (("sbatch", sbatch), ("squeue", SQUEUE), ("scancel", SCANCEL)):
        (place / name).write_text(text)
        (place / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}:{os.environ['PATH']}")
    monkeypatch.setattr(slurm, "FIRST_POLL", 0.01)
    return place


def given_to(fake: Path) -> tuple[list[str], str, str]:
    words, text, cwd = json.loads((fake / "given.json").read_text())
    return words, text, cwd


def test_the_tasks_of_an_array_are_the_sweep(fake, swept, tmp_path, capsys):
    out = tmp_path / "out"
    axes = {"tasks": "ioi,math,syntax", "models": "mini", "methods": "patch"}
    sweep(cluster="slurm", jobs=1, out=str(out), quiet=True, **axes, **SMALL)
    ours = digests(out)
    assert {k: v for k, v in ours.items() if k.startswith("cells")} == {
        k: v for k, v in digests(swept).items() if k.startswith("cells")
    }
    assert capsys.readouterr().out.startswith("3 of 3 cells done in ")
    assert len((out / "log.txt").read_text().splitlines()) == 3
    # Nothing is left to run: nothing is submitted.
    (fake / "given.json").unlink()
    sweep(cluster="slurm", jobs=1, out=str(out), quiet=True, **axes, **SMALL)
    assert not (fake / "given.json").exists()


def test_tasks_that_end_early_are_named_with_their_log(fake, tmp_path):
    (fake / "broken").touch()
    log = tmp_path / "slurm" / "17_2.log"
    with pytest.raises(MechheadsError, match="2 of 2 cells failed") as error:
        sweep(cluster="slurm", out=str(tmp_path), quiet=True, **TASKS, **SMALL)
    assert f"Slurm's task 17_2 left it (timeout; see {log})" in str(error.value)
    assert "17_1" in (tmp_path / "index.html").read_text()
    words, text, cwd = given_to(fake)
    assert "--array=1,2" in words  # a task per cell
    assert text.splitlines()[-1].endswith(' --shard="$SLURM_ARRAY_TASK_ID/2"')
    assert cwd == str(Path.cwd())


def test_what_is_given_reaches_sbatch(fake, tmp_path):
    flags: dict[str, Any] = {"partition": "gpu,long", "time": "1-00:30:00", "gpus": 2.0}
    flags |= {"cpus": 1.5, "jobs": 5, "no_wait": True, "out": str(tmp_path / "50%A")}
    (fake / "broken").touch()
    sweep(cluster="slurm", quiet=True, **flags, **TASKS, **SMALL)
    words, text, _ = given_to(fake)
    wanted = ["--partition=gpu,long", "--time=1-00:30:00", "--gres=gpu:2", "--cpus-per-task=2"]
    wanted += ["--requeue", "--array=1,2", f"--output={tmp_path}/50%%A/slurm/%A_%a.log"]
    assert set(wanted) <= set(words)
    assert '/5"' in text  # five shards of two cells: three would have nothing to do
    assert "--cpus=1.5" in shlex.split(text)


def test_without_waiting_the_job_is_told(fake, tmp_path, capsys):
    (fake / "broken").touch()
    given: dict[str, Any] = {"cluster": "slurm", "out": str(tmp_path), **TASKS, **SMALL}
    sweep(no_wait=True, quiet=True, **given)
    said = capsys.readouterr().out
    assert "Slurm's job 17 runs the others in 2 tasks (see `squeue -j 17`)" in said
    assert said.splitlines()[-1] == str(tmp_path / "index.html")
    sweep(no_wait=True, quiet=True, json=True, **given)
    assert json.loads(capsys.readouterr().out)["headline"]["job"] == "17"


def test_nothing_given_is_read_by_the_shell(tmp_path, monkeypatch):
    hostile = ["-m", "a b", "--x='; touch pwned; '", "--y=$(touch pwned)", "--z=`touch pwned`\n&"]
    shows = tmp_path / "it's python"
    shows.write_text(f"#!{sys.executable}\nimport json, sys; print(json.dumps(sys.argv[1:]))")
    shows.chmod(0o755)
    monkeypatch.setattr(slurm.sys, "executable", str(shows))
    done = subprocess.run(
        ["sh"],
        input=slurm.script(hostile, 4),
        env={**os.environ, "SLURM_ARRAY_TASK_ID": "3"},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == [*hostile, "--shard=3/4"]
    assert [file.name for file in tmp_path.iterdir()] == [shows.name]


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ({"partition": "a b"}, "--partition takes gpu"),
        ({"partition": "--wrap=ls"}, "--partition takes gpu"),
        ({"partition": "a,"}, "--partition takes gpu"),
        ({"partition": "a\n"}, "--partition takes gpu"),
        ({"time": "1h"}, "--time takes 01:30:00"),
        ({"time": "1:2:3:4"}, "--time takes 01:30:00"),
        ({"time": ""}, "--time takes 01:30:00"),
        ({"jobs": 0}, "--jobs takes 1 to"),
        ({"jobs": -1}, "--jobs takes 1 to"),
        ({"gpus": 0.5}, "--gpus takes a whole number"),
        ({"split_layers": True}, "--split-layers needs a Ray cluster"),
    ],
)
def test_what_slurm_cannot_take_is_refused(flags, why, fake, tmp_path):
    with pytest.raises(MechheadsError, match=why):
        sweep(tasks="math", cluster="slurm", out=str(tmp_path / "new"), **flags)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "flags", [{"partition": "a"}, {"time": "1"}, {"jobs": 2}, {"jobs": 0}, {"no_wait": True}]
)
@pytest.mark.parametrize("cluster", [None, "local"])
def test_the_flags_of_slurm_are_of_slurm_alone(flags, cluster, tmp_path):
    with pytest.raises(MechheadsError, match=r"needs --cluster slurm\."):
        sweep(tasks="math", cluster=cluster, out=str(tmp_path), **flags)


def test_where_slurm_is_missing_there_is_one_line(fake, tmp_path, monkeypatch):
    (fake / "scancel").unlink()
    monkeypatch.setenv("PATH", str(fake))
    with pytest.raises(MechheadsError, match=r"needs Slurm's scancel, which is not on PATH\. "):
        sweep(tasks="math", cluster="slurm", out=str(tmp_path))


def test_sbatch_has_the_last_word(fake, tmp_path):
    (fake / "sbatch").write_text("#!/bin/sh\necho 'sbatch: error: no such partition' >&2; exit 1")
    with pytest.raises(
        MechheadsError, match=r"did not take the sweep \(sbatch: error: no such part"
    ):
        sweep(cluster="slurm", out=str(tmp_path), quiet=True, **TASKS, **SMALL)


def test_a_controller_that_does_not_answer_for_a_while_is_asked_again(fake, tmp_path, monkeypatch):
    (fake / "broken").touch()
    (fake / "squeue").write_text(
        '#!/bin/sh\ncd "$(dirname "$0")"\n'
        "[ -e asked ] && cat states && exit; touch asked; echo 'cannot connect' >&2; exit 1"
    )
    with pytest.raises(MechheadsError, match="2 of 2 cells failed"):
        sweep(cluster="slurm", out=str(tmp_path), quiet=True, **TASKS, **SMALL)
    (fake / "asked").unlink()
    monkeypatch.setattr(slurm, "DEADLINE", -1.0)
    with pytest.raises(MechheadsError, match=r"squeue does not answer \(cannot connect\)"):
        sweep(cluster="slurm", out=str(tmp_path), quiet=True, **TASKS, **SMALL)
    assert (fake / "cancelled").read_text() == "17\n"


def command(out: Path, **flags: str) -> list[str]:
    given = {"cluster": "slurm", "out": str(out), **TASKS, **SMALL, **flags}
    return [sys.executable, "-m", "mechheads.sweep", *(f"--{k}={v}" for k, v in given.items())]


@pytest.mark.parametrize(("stop", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopped_it_cancels_the_array(stop, code, fake, tmp_path):
    for name in ("broken", "pending"):
        (fake / name).touch()
    process = subprocess.Popen(
        command(tmp_path / "out"),
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    until = time.monotonic() + 60
    while not (fake / "states").exists() and time.monotonic() < until:
        time.sleep(0.1)
    process.send_signal(stop)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said.count("\n")) == (code, 1)
    assert (fake / "cancelled").read_text() == "17\n"
