"""Every command that writes, killed before its file operations: nothing lost, the same bytes again.

An audit hook counts the file operations below the output folder and kills the process before one of
them, so that it needs no luck. `make torture` kills before every one of them, `make test` before a
few. Each attempt is a fork of this process: what takes seconds to import is imported once.
"""

import contextlib
import hashlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mechheads.attention import attention
from mechheads.compare import compare
from mechheads.discover import discover
from mechheads.gate import gate
from mechheads.leaderboard import leaderboard
from mechheads.mask import mask
from mechheads.prefix import prefix
from mechheads.sparsify import sparsify
from mechheads.sweep import sweep
from mechheads.train_mini import train_mini

ALL = bool(os.environ.get("MECHHEADS_TORTURE"))
FEW = 4  # kills of each command in a short run
FEWER = {"train_mini": 1, "sweep": 2}  # where a run takes long
WATCHED = {"open", "os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.truncate"}
# What may differ between runs: times.
TIMED = ("timings.json", "log.txt", ".lock")

COMMANDS: dict[str, Callable[[Path], Any]] = {
    "discover": lambda out: discover(task="math", n=4, test=4, draws=2, out=str(out), quiet=True),
    "compare": lambda out: compare(
        tasks="math", n=4, test=4, draws=2, method="attribution", out=str(out), quiet=True
    ),
    "leaderboard": lambda out: leaderboard(
        tasks="math", n=4, test=4, seeds=1, draws=2, methods="direct,random", out=str(out),
        quiet=True,
    ),
    "gate": lambda out: gate(
        n=8, test=8, seeds=1, updates=4, points=2, no_patching=True, out=str(out), quiet=True
    ),
    "mask": lambda out: mask(
        tasks="retrieval", n=4, rank=4, k="2", draws=1, max_tokens=1, out=str(out), quiet=True
    ),
    "prefix": lambda out: prefix(n=16, length=4, max_tokens=1, out=str(out), quiet=True),
    "attention": lambda out: attention(models="mini", out=str(out / "a.html"), quiet=True),
    "sweep": lambda out: sweep(
        tasks="math,syntax", models="mini", cpus=1.0, out=str(out), quiet=True, n="4", test="4",
        draws="2", method="attribution",
    ),
    "sparsify": lambda out: sparsify(
        model=os.environ["TINY"], text=os.environ["TEXT"], length=8, batch=2, steps=2,
        out=str(out), quiet=True,
    ),
    "train_mini": lambda out: train_mini(
        layers=1, heads=2, width=16, steps=1, last=0, workers=1, out=str(out), quiet=True
    ),
}  # fmt: skip


def attempt(command: Callable[[Path], Any], out: Path, kill_at: int = 0) -> tuple[int, int]:
    """Run it in a fork, killed before that operation; how it ended, and the operations begun."""
    counter = out.parent / "counter"
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            _watch(out, counter, kill_at)
            with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
                command(out)
            os._exit(0)
        os._exit(1)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status), len(counter.read_bytes()) if kill_at == 0 else 0


def _watch(out: Path, counter: Path, kill_at: int) -> None:
    counter.unlink(missing_ok=True)
    log = os.open(counter, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    place, seen = str(out), 0

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal seen
        if event not in WATCHED or not isinstance(args[0], str | os.PathLike):
            return
        if not os.fspath(args[0]).startswith(place):
            return
        if event == "open" and not (args[2] & (os.O_WRONLY | os.O_RDWR)):
            return
        seen += 1
        if seen == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        os.write(log, b".")

    sys.addaudithook(hook)


def digests(folder: Path) -> dict[str, str]:
    """Every file that must come out the same; a training log has a column of seconds."""
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.name not in TIMED and "training" not in file.parts
    }


@pytest.fixture(scope="module", autouse=True)
def materials(checkpoint, tmp_path_factory):
    """What training needs."""
    text = tmp_path_factory.mktemp("text") / "text.txt"
    text.write_text("Mary and John had 3 books. " * 200)
    os.environ |= {"TINY": str(checkpoint("gpt2")), "TEXT": str(text)}


@pytest.mark.parametrize("name", COMMANDS)
def test_killed_before_any_file_operation_it_loses_nothing(name, tmp_path):
    command, whole = COMMANDS[name], tmp_path / "whole" / "out"
    whole.mkdir(parents=True)
    code, operations = attempt(command, whole)
    assert code == 0
    wanted = digests(whole)
    assert operations > 1
    step = 1 if ALL else max(1, -(-operations // FEWER.get(name, FEW)))
    for at in range(1 + (operations - 1) % step, operations + 1, step):
        out = tmp_path / f"killed{at}" / "out"
        out.mkdir(parents=True)
        code, _ = attempt(command, out, at)
        assert code == -signal.SIGKILL, f"operation {at} was never begun"
        code, _ = attempt(command, out)
        assert code == 0, f"after a kill before operation {at} it cannot be run again"
        assert digests(out) == wanted, f"other bytes after a kill before operation {at}"
        hidden = [p.name for p in out.rglob(".*") if p.name not in TIMED]
        assert not hidden, f"left behind after a kill before operation {at}"
    print(f"\n{name}: {len(range(1, operations + 1, step))} kills")
