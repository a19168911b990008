import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
from process import run

from mechheads.cli.commands import COMMANDS, PROGRESS
from mechheads.cli.help import help_text, overview

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.parametrize("module", ["mechheads", *(f"mechheads.{name}" for name in COMMANDS)])
def test_help_is_quick_and_imports_no_torch(module):
    program = (
        "import resource, runpy, sys\n"
        f"sys.argv = [{module!r}, '--help']\n"
        "try: runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)\n"
        "except SystemExit as exit: assert not exit.code\n"
        "assert not {'torch', 'transformers', 'pandas'} & set(sys.modules)\n"
        "used = resource.getrusage(resource.RUSAGE_SELF)\n"
        "print('SECONDS', used.ru_utime + used.ru_stime)\n"
    )
    out = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "Usage: " in out.stdout
    assert float(out.stdout.split("SECONDS")[1]) < 0.5


def test_every_command_is_in_the_overview_and_in_the_readme():
    for name, command in COMMANDS.items():
        assert callable(command.function)
        assert re.search(rf"^  {name} +{command.summary}$", overview(), re.MULTILINE)
        assert f"`{name}`" in README.read_text()


def test_help_tells_every_flag_and_the_options_of_the_tasks():
    out = run("mechheads.show", "--help").stdout
    for words in (
        "--task TASK",
        "--seed SEED",
        "[0]",
        "--quiet",
        "--prepend-bos",
        "[abc]: abc, s2, flip",
    ):
        assert words in out
    for line in out.splitlines():
        assert len(line) <= 110


@pytest.mark.parametrize("name", COMMANDS)
def test_help_leaves_out_no_word_of_the_docstrings(name):
    command = COMMANDS[name]
    shown = " ".join(help_text(command).split())
    documented = [command.function]
    documented += [p.annotation for p in inspect.signature(command.function).parameters.values()]
    described = set()
    for thing in documented:
        _, _, listed = (inspect.getdoc(thing) or "").partition("Args:\n")
        for argument, text in re.findall(r"^    (\w+): (.*(?:\n      .*)*)", listed, re.MULTILINE):
            described.add(argument)
            if argument not in ("options", "loading"):
                assert " ".join(text.split()) in shown
    assert set(command.flags) - {PROGRESS.name} <= described
