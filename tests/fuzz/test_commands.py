"""Every flag of every command with every hostile value: done, or refused in one line with code 2.

`make test` tries a few of them, `make fuzz` all. Each attempt is a fork of this process, so that
what takes seconds to import is imported once.
"""

import contextlib
import os
import signal
import sys
import time
from collections import Counter
from importlib import import_module
from pathlib import Path

import pytest

from mechheads.cli.commands import COMMANDS
from mechheads.cli.main import _execute
from mechheads.options import flag_of

ALL = bool(os.environ.get("MECHHEADS_FUZZ"))
FEW = 12  # attempts per command in a short run
HANGS = 60  # seconds
VALUES = [
    "", " ", "-1", "0", "1", "2.5", "nan", "inf", "-inf", "1e400", "9" * 30, "x", "é\u202e",
    "~nouser/x", "../x", "a" * 5000, "[1,2]", "None", "true", "all", ",", "1,,2", "{}",
    "/dev/null", "<b>", "%{x}", "math,math", "http://127.0.0.1:9/x", "10%", "L0H0", "99,99",
    "\ud800", "a\nb",
]  # fmt: skip
# Small runs, so that what is accepted ends soon.
BASES = {
    "discover": "--task=math --n=4 --test=4 --draws=2 --method=attribution",
    "gate": "--n=8 --test=8 --seeds=1 --updates=2 --points=2 --no-patching",
    "mask": "--tasks=retrieval --n=4 --rank=4 --k=2 --draws=1 --max-tokens=1 --method=attribution",
    "prefix": "--n=4 --length=4 --max-tokens=1",
    "compare": "--tasks=math --n=4 --test=4 --draws=2 --method=attribution",
    "leaderboard": "--tasks=math --n=4 --test=4 --seeds=1 --draws=2 --methods=direct,random",
    "verify": "nothing-here",
    "show": "--task=math --n=2 --test=2",
    "attention": "--models=mini --out=a.html",
    "sweep": "--tasks=math --models=mini --cpus=1 --n=4 --test=4 --draws=2 --method=attribution",
    "bench": "--rows=2 --length=12 --loops=1 --first=8",
    "fetch": "nothing-here",
    "sparsify": "--model=MODEL --text=TEXT --length=8 --batch=2 --steps=1 --out=sparse",
    "train_mini": "--layers=1 --heads=2 --width=16 --steps=1 --last=0 --workers=1 --out=trained",
}


def attempt(name: str, words: list[str], place: Path) -> tuple[int, str, float]:
    """The exit code, what was printed on stderr, and the seconds it took."""
    place.mkdir(parents=True)
    said, start = place / "stderr", time.monotonic()
    pid = os.fork()
    if pid == 0:
        code = 1
        with contextlib.suppress(BaseException):
            os.setsid()
            os.chdir(place)
            os.environ["HF_HUB_OFFLINE"] = "1"
            for fd, file in ((1, os.devnull), (2, said)):
                os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), fd)
            sys.stdout, sys.stderr = (os.fdopen(fd, "w", closefd=False) for fd in (1, 2))
            try:
                _execute(COMMANDS[name], words)
            except SystemExit as ended:
                code = int(ended.code or 0)
            except BaseException:
                import traceback

                traceback.print_exc()
            sys.stderr.flush()
        os._exit(code)
    while (ended := os.waitpid(pid, os.WNOHANG)) == (0, 0):
        if time.monotonic() - start > HANGS:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return -9, "hang", HANGS
        time.sleep(0.005)
    text = said.read_text(errors="replace") if said.exists() else ""
    code = os.waitstatus_to_exitcode(ended[1])
    return (1 if "Traceback" in text else code), text, time.monotonic() - start


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    """Import what the commands import late, or every fork would do so again."""
    for job in ("discovery", "comparison", "leaderboard", "gating", "masking", "filler"):
        import_module(f"mechheads.jobs.{job}")
    for job in ("sparsify", "train_mini"):
        import_module(f"mechheads.jobs.{job}")
    for room in ("training.pretraining", "training.sparsification", "gating", "masking", "filler"):
        import_module(f"mechheads.{room}")


@pytest.fixture(scope="module")
def materials(checkpoint, tmp_path_factory) -> dict[str, str]:
    text = tmp_path_factory.mktemp("text") / "text.txt"
    text.write_text("Mary and John had 3 books. " * 200)
    return {"MODEL": str(checkpoint("gpt2")), "TEXT": str(text)}


@pytest.mark.parametrize("name", COMMANDS)
def test_flags_with_hostile_values(name, tmp_path, materials, monkeypatch):
    # A benchmark takes minutes: only its flags are read here.
    monkeypatch.setattr("mechheads.benchmarks.timings.compare", lambda *_, **__: ())
    command, base = COMMANDS[name], BASES[name]
    for key, value in materials.items():
        base = base.replace(key, value)
    flags = [*command.flags, *(command.options if "commands" not in command.takes else [])]
    cases = [(flag, value) for flag in dict.fromkeys(flags) for value in VALUES]
    code, text, _ = attempt(name, base.split(), tmp_path / "base")
    assert code == (2 if "nothing-here" in base else 0), text  # else all would be refused for that
    counts: Counter[str] = Counter()
    for i, (flag, value) in enumerate(cases[:: 1 if ALL else -(-len(cases) // FEW)]):
        positional = flag in ("folder", "names", "model") and name in ("verify", "fetch")
        words = [] if positional else base.split()
        words += [value] if positional else [f"{flag_of(flag)}={value}"]
        code, text, seconds = attempt(name, words, tmp_path / str(i) / "a" / "b")
        what = f"{name} {words} ({seconds:.1f} s): {text[-600:]}"
        if ALL and (code not in (0, 2) or seconds > 20):
            print(what)
            counts["bad"] += code not in (0, 2)
            continue
        assert code in (0, 2), what
        if code == 2:
            assert len([x for x in text.splitlines() if x.startswith("mechheads.")]) == 1, what
        counts["done" if code == 0 else "refused"] += 1
    print(f"\n{name}: {dict(counts)}")
    assert not counts["bad"]
