import os
import subprocess
import sys
from pathlib import Path

import pytest
from process import run

from mechheads import __version__
from mechheads.cli.main import spin_less
from mechheads.packages import leave_working_directory

SCRIPT = Path(sys.executable).with_name("mechheads")


def test_the_console_script_is_the_same_as_the_module():
    script = subprocess.run([SCRIPT, "show", "--help"], capture_output=True, text=True, check=True)
    assert script.stdout == run("mechheads.show", "--help").stdout
    assert run("mechheads", "show", "--help").stdout == script.stdout
    assert run("mechheads", "--version").stdout == f"mechheads {__version__}\n"


def test_an_unknown_command_is_suggested():
    out = run("mechheads", "shwo")
    assert (out.returncode, out.stderr.count("\n")) == (2, 1)
    assert "Unknown command 'shwo'. Did you mean 'show'?" in out.stderr


def test_a_closed_pipe_is_not_an_error():
    command = f"{sys.executable} -m mechheads.show --help | head -1"
    out = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert (out.returncode, out.stderr) == (0, "")


@pytest.fixture
def stranger(tmp_path):
    """A folder with files that have the names of our packages."""
    for name in ("tasks.py", "circuits.py"):
        (tmp_path / name).write_text("raise SystemExit('a stranger was imported')")
    return tmp_path


@pytest.mark.parametrize("words", [["mechheads.show"], ["mechheads", "show"]])
def test_a_strangers_tasks_py_in_the_working_directory_is_not_imported(words, stranger):
    out = run(*words, "--task", "math", "--test", "4", cwd=stranger)
    assert (out.returncode, out.stderr) == (0, "")
    assert "math on mini" in out.stdout


def test_a_script_beside_a_strangers_tasks_py_is_told_what_hides_ours(stranger):
    (stranger / "tasks.py").write_text("")
    (stranger / "mine.py").write_text("import mechheads, tasks\nmechheads.METHODS\ntasks.make")
    out = run("mine", cwd=stranger)
    assert "shadows the package `tasks` of mechheads" in out.stderr
    assert str(stranger / "tasks.py") in out.stderr
    (stranger / "mine.py").write_text("from mechheads.discover import discover\ndiscover()")
    out = run("mine", cwd=stranger)
    assert "MechheadsError: `import tasks` finds" in out.stderr


def test_our_own_folder_stays_on_the_search_path(monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2])
    before = ["", *sys.path]
    monkeypatch.setattr(sys, "path", list(before))
    leave_working_directory()
    assert sys.path == before


def test_a_working_directory_that_is_gone_is_one_line():
    code = 'd=$(mktemp -d) && cd "$d" && rmdir "$d"'
    command = f"{code} && {sys.executable} -m mechheads.show"
    out = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert (out.returncode, out.stderr.count("\n")) == (2, 1)
    assert "the working directory no longer exists" in out.stderr


@pytest.mark.parametrize(
    ("given", "spins"),
    [({}, "10000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, None)],
)
def test_threads_spin_less_unless_the_user_says_how(given, spins, monkeypatch):
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    spin_less()
    assert os.environ.get("GOMP_SPINCOUNT") == spins
