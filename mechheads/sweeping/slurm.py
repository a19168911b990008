"""The same cells on a Slurm cluster: one job array, each task of which runs a shard of the sweep.

1. `submit` gives sbatch a script on its standard input: every task runs this sweep with --shard.
2. `wait` asks squeue for the states of the tasks until all have ended; requeued ones go on.
3. `blame` says of each cell that has neither a run nor an error which task should have run it.

Other options of sbatch (account, quality of service, ...) are taken from its environment variables,
such as SBATCH_ACCOUNT. All nodes must see the sweep's folder, the models and this Python.
"""

import math
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mechheads.errors import MechheadsError, shown
from mechheads.progress import bar
from mechheads.runs.files import prepare

from .cells import CELLS, Sweep
from .shards import Shard

LOGS = "slurm"  # the folder with what the tasks have printed
CAP = 100  # array tasks, unless --jobs says otherwise
MOST = 10_000
FIRST_POLL, LAST_POLL = 1.0, 15.0  # seconds between two questions to squeue
DEADLINE = 600.0  # seconds without an answer of squeue
ANSWER = 60.0  # seconds in which a program of Slurm must answer
NEEDED = ("sbatch", "squeue", "scancel")
UNKNOWN = "Invalid job id"
ENDED = frozenset(
    "BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY PREEMPTED "
    "TIMEOUT".split()
)


@dataclass(frozen=True)
class Array:
    """A submitted job array: its job id, the number of shards, and those that have a task."""

    job: str
    count: int
    indices: tuple[int, ...]
    logs: Path

    def log(self, index: int) -> Path:
        """What a task has printed."""
        return self.logs / f"{self.job}_{index}.log"


def check(given: Mapping[str, Any]) -> None:
    """Raise an error if the flags for Slurm are invalid, or Slurm is not there."""
    if given["split_layers"]:
        raise MechheadsError("--split-layers needs a Ray cluster, not Slurm. Leave it out.")
    if given["gpus"] % 1:
        raise MechheadsError(f"--gpus takes a whole number on Slurm, got {given['gpus']:g}.")
    if given["jobs"] is not None and not 1 <= given["jobs"] <= MOST:
        raise MechheadsError(f"--jobs takes 1 to {MOST:,} array tasks, got {given['jobs']}.")
    for name, pattern, example in (
        ("partition", r"\w[\w.+-]*(,\w[\w.+-]*)*", "gpu, or gpu,long"),
        ("time", r"(\d{1,5}-)?\d{1,7}(:\d{1,2}){0,2}", "01:30:00, or 2-00:00:00 for two days"),
    ):
        value = given[name]
        if value is not None and not re.fullmatch(pattern, value, re.ASCII):
            raise MechheadsError(f"--{name} takes {example}; got {shown(value)}.")
    for program in NEEDED:
        if shutil.which(program) is None:
            raise MechheadsError(
                f"--cluster slurm needs Slurm's {program}, which is not on PATH. Start the sweep "
                "on a login node of the cluster, or use --cluster local."
            )


def submit(left: Sweep, words: Sequence[str], given: Mapping[str, Any]) -> Array:
    """Submit the shards that have unfinished cells; `words` is the sweep's command line."""
    out, cwd = left.out.resolve(), Path.cwd()
    for path in (str(out), str(cwd)):
        if "\\" in path or not path.isprintable():
            raise MechheadsError(f"Slurm cannot write to {path!r}. Choose an --out without \\.")
    count = given["jobs"] or min(len(left.cells), CAP)
    indices = tuple(
        i
        for i in range(1, count + 1)
        if any(cell not in left.runs for cell in Shard(i, count).of(left.cells))
    )
    logs = prepare(out / LOGS)
    options = {
        "job-name": "mechheads-sweep",
        "array": ",".join(map(str, indices)),
        "ntasks": 1,
        "cpus-per-task": math.ceil(given["cpus"] or 1.0),
        "gres": f"gpu:{given['gpus']:.0f}" if given["gpus"] else None,
        "partition": given["partition"],
        "time": given["time"],
        "chdir": cwd,
        "output": f"{str(logs).replace('%', '%%')}/%A_%a.log",
        "open-mode": "append",
    }
    command = ["sbatch", "--parsable", "--requeue"]
    command += [f"--{name}={value}" for name, value in options.items() if value is not None]
    with _without_signals():  # a job whose number we do not know could not be cancelled
        said = _ask(command, script([*words, f"--out={out}", "--quiet"], count))
    job = said.stdout.strip().partition(";")[0]
    if said.returncode or not job.isdecimal():
        why = _first_line(said.stderr) or f"it answered {shown(said.stdout.strip())}"
        raise MechheadsError(
            f"sbatch did not take the sweep ({why}). `sinfo` lists the partitions."
        )
    return Array(job, count, indices, logs)


def script(words: Sequence[str], count: int) -> str:
    """What each task runs: nothing of it is read by the shell but the task's own number."""
    line = shlex.join([sys.executable, *words])
    return f'#!/bin/sh\nexec {line} --shard="$SLURM_ARRAY_TASK_ID/{count}"\n'


def wait(array: Array, left: Sweep, quiet: bool) -> dict[int, str]:
    """Wait until all tasks have ended; returns the last known state of each."""
    states: dict[int, str] = {}
    total, pause, answered = len(left.cells), FIRST_POLL, time.monotonic()
    with bar(total, "Cells", quiet, initial=len(left.runs)) as progress:
        while True:
            said = _ask(["squeue", "-h", "-r", "-t", "all", "-j", array.job, "-o", "%K %T"])
            gone = UNKNOWN in said.stderr  # Slurm forgets a job some minutes after its end
            listed = _states(said.stdout)
            states |= listed
            if gone or not said.returncode:
                answered = time.monotonic()
            elif time.monotonic() - answered > DEADLINE:
                raise MechheadsError(
                    f"squeue does not answer ({_first_line(said.stderr)}). Stop the job with "
                    f"`scancel {array.job}`, and start the sweep again to go on."
                )
            running = sum(state == "RUNNING" for state in states.values())
            progress.reach(sum((left.out / CELLS / cell.name).is_dir() for cell in left.cells))
            progress.set_postfix(running=running)
            if gone or (not said.returncode and set(listed.values()) <= ENDED):
                return states
            time.sleep(pause)
            pause = min(LAST_POLL, 1.5 * pause)


def cancel(array: Array) -> None:
    """Cancel all tasks; what they have finished is kept."""
    with _without_signals():
        _ask(["scancel", array.job])


def blame(swept: Sweep, array: Array, states: Mapping[int, str]) -> None:
    """An error for each cell that a task has left, with the task's state and log."""
    for index in array.indices:
        state = states.get(index, "")
        state = state.lower().replace("_", " ") if state in ENDED else "ended"
        for cell in Shard(index, array.count).of(swept.cells):
            if cell not in swept.runs and cell not in swept.errors:
                log = array.log(index)
                swept.errors[cell] = (
                    f"Slurm's task {array.job}_{index} left it ({state}; see {log})"
                )


def _states(listed: str) -> dict[int, str]:
    """The state of each task in squeue's table."""
    rows = [line.split() for line in listed.splitlines()]
    return {int(row[0]): row[1] for row in rows if len(row) == 2 and row[0].isdecimal()}


def _ask(command: Sequence[str], text: str = "") -> "subprocess.CompletedProcess[str]":
    """Run a program of Slurm; one that does not answer has failed. Ctrl-C is not for it."""
    try:
        return subprocess.run(
            command,
            input=text,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ANSWER,
            start_new_session=True,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        why = f"no answer within {ANSWER:.0f} s"
        why = error.strerror or why if isinstance(error, OSError) else why
        return subprocess.CompletedProcess(command, 1, "", f"{command[0]}: {why}")


@contextmanager
def _without_signals() -> Iterator[None]:
    """Ctrl-C and SIGTERM wait until the end of the block."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _first_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[0]
