"""The places a command may print to, and the signals it may get."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import process
import pytest


def test_a_full_disk_behind_stdout_is_one_line():
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "mechheads.show", "--task", "math", "--n", "2", "--test", "2"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 2
    assert done.stderr.endswith("cannot write to stdout (no space left on device).\n")
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("mechheads --help >/dev/full", 2),
        ("mechheads --version >/dev/full", 2),
        ("mechheads --version >&-", 0),
        ("mechheads nope 2>/dev/full", 2),
        ("mechheads.show --help >&-", 0),
        ("mechheads.show --help 2>&-", 0),
        ("mechheads.show --help <&- >&- 2>&-", 0),
        ("mechheads.show --task nope 2>&-", 2),
        ("mechheads.show --task nope 2>/dev/full", 2),
    ],
)
def test_streams_that_are_closed_or_full_are_no_traceback(words, code):
    done = subprocess.run(
        f"{sys.executable} -m {words}", shell=True, capture_output=True, text=True, check=False
    )
    assert done.returncode == code
    assert done.stderr.count("\n") == ("stdout (no space" in done.stderr)
    assert "Traceback" not in done.stderr


def test_a_closed_stream_does_not_take_the_number_of_a_file():
    """A file opened as number 1 would get what libraries print."""
    code = (
        "from mechheads.cli.main import open_streams\nopen_streams()\n"
        "import sys\nprint(open(__import__('os').devnull).fileno(), file=sys.stderr)"
    )
    done = subprocess.run(
        f'{sys.executable} -c "$CODE" <&- >&-',
        shell=True,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "CODE": code},
        check=False,
    )
    assert int(done.stderr) > 2


def test_a_terminal_gets_no_codes_from_a_name():
    done = process.run("mechheads.show", "--task", "\x1b[2J\u202ename")
    assert done.returncode == 2
    assert "'\\x1b[2J\\u202ename'" in done.stderr


def test_an_ascii_terminal_shows_a_question_mark_for_what_it_cannot_show():
    done = process.run("mechheads.discover", "--task", "été", PYTHONIOENCODING="ascii")
    assert done.returncode == 2
    assert "'?t?'" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("path", ["~nouser/x.jsonl", "a" * 5000 + ".jsonl", "a\nb.jsonl"])
def test_paths_that_cannot_exist_are_one_line(path):
    done = process.run("mechheads.discover", f"--task={path}")
    assert done.returncode == 2
    assert done.stderr.startswith("mechheads.discover: ")
    assert done.stderr.count("\n") == 1


@pytest.fixture
def silent():
    """A server that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


START = """
import sys
from mechheads.cli.main import run
from mechheads.sweep import sweep
from mechheads.sweeping import cluster
cluster.DEADLINE = float(sys.argv.pop())
run(sweep)
"""


def sweep_at(address: str, out: str, deadline: str) -> "subprocess.Popen[str]":
    pytest.importorskip("ray")
    words = ["--tasks", "math", "--models", "mini", "--cluster", address, "--out", out, deadline]
    return subprocess.Popen(
        [sys.executable, "-c", START, *words],
        env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_server_that_is_no_ray_cluster_has_a_deadline(silent, tmp_path):
    stopped = sweep_at(silent, str(tmp_path), "3")
    _, said = stopped.communicate(timeout=60)
    assert stopped.returncode == 2
    last = said.strip().splitlines()[-1]
    assert last.startswith(f"mechheads.sweep: no Ray cluster at {silent} (no answer within 3 s).")


def test_terminated_while_it_connects_it_exits_at_once(silent, tmp_path):
    started = sweep_at(silent, str(tmp_path), "60")
    time.sleep(12)
    assert started.poll() is None
    started.send_signal(signal.SIGTERM)
    _, said = started.communicate(timeout=5)
    assert started.returncode == 143
    assert said.strip().splitlines()[-1] == "mechheads.sweep: terminated."
