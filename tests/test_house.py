"""What import-linter cannot see of the house: sizes, words that belong to one room, habits."""

import ast
import re
from pathlib import Path

import pytest

from mechheads.cli.commands import COMMANDS

ROOT = Path(__file__).parents[1]
ROOMS = ("mechheads", "tasks", "circuits")
FILES = sorted(p for room in ROOMS for p in (ROOT / room).glob("**/*.py"))
IDS = [str(f.relative_to(ROOT)) for f in FILES]
# Where something may be printed.
PRINTING = ("mechheads/cli/", "mechheads/jobs/", "mechheads/progress.py", "mechheads/fetch.py")
PRINTING += ("mechheads/benchmarks/", "mechheads/models/peers/", "mechheads/sweeping/sweep.py")
PRINTING += ("mechheads/verifying/verify.py", "mechheads/plugins.py")


def calls(file: Path) -> set[str]:
    """The names of all functions that the file calls by name."""
    nodes = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
    return {node.func.id for node in nodes if isinstance(node.func, ast.Name)}


@pytest.mark.parametrize("file", FILES, ids=IDS)
def test_only_models_reads_a_config_or_names_a_hook(file):
    if "mechheads/models/" in file.as_posix():
        return
    code = re.sub(r'"""[\s\S]*?"""', "", file.read_text())
    assert not re.search(r"\bmodel\.cfg\b|\.cfg\.|hook_z|run_with_hooks|run_with_cache", code)


@pytest.mark.parametrize("file", FILES, ids=IDS)
def test_habits(file):
    text, name = file.read_text(), file.relative_to(ROOT).as_posix()
    assert "from __future__ import annotations" not in text  # jaxtyping would check nothing
    assert "torch.load(" not in text
    assert not re.search(r"^\s*(import|from) pickle", text, re.MULTILINE)
    if not name.startswith(PRINTING):
        assert "print" not in calls(file)


def test_no_room_is_crowded_and_no_test_file_is_long():
    commands = {*COMMANDS, "__init__", "__main__"}
    for folder in {file.parent for file in FILES} - {ROOT / "tasks"}:
        modules = {f.stem for f in folder.glob("*.py")} - {"__init__"}
        assert len(modules - commands) <= 16, folder
    for file in (ROOT / "tests").rglob("*.py"):
        assert len(file.read_text().splitlines()) <= 400, file


def test_a_command_is_a_signature_a_docstring_and_one_call():
    for name in COMMANDS:
        (function,) = (
            node
            for node in ast.parse((ROOT / "mechheads" / f"{name}.py").read_text()).body
            if isinstance(node, ast.FunctionDef)
        )
        assert function.name == name
        assert len(function.body) <= 4


def test_every_class_has_a_name_of_its_own():
    named: dict[str, str] = {}
    for file in FILES:
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef):
                assert node.name not in named, f"{node.name}: {named.get(node.name)} and {file}"
                named[node.name] = str(file)


def test_top_level_holds_what_it_should():
    known = {
        ".ci", ".git", ".gitignore", ".venv", ".pytest_cache", ".ruff_cache", "CONTRIBUTING.md",
        "SECURITY.md", ".hypothesis",
        ".import_linter_cache", "LICENSE", "Makefile", "README.md", "circuits", "constraints.txt",
        "constraints-lens4.txt", ".venv-lens4",
        "mechheads", "notebooks", "pyproject.toml", "runs", "tasks", "tests", "mechheads.egg-info",
        "build", "dist",
    }  # fmt: skip
    assert {p.name for p in ROOT.iterdir()} <= known
