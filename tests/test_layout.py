"""The folder tree is the architecture: imports go tasks -> mechheads <- circuits, no other way."""

import ast
from pathlib import Path

import pytest

from mechheads.cli.parse import VERBS

ROOT = Path(__file__).parents[1]
FILES = sorted(
    p for room in ("mechheads", "tasks", "circuits") for p in (ROOT / room).glob("**/*.py")
)
IDS = [str(f.relative_to(ROOT)) for f in FILES]


def imports(file: Path) -> list[tuple[str, bool]]:
    """(module, whether at the top level) of every absolute import; relative ones are local."""
    tree = ast.parse(file.read_text())
    # Neither what a function imports when it is called, nor what only type checkers read.
    later = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) or _for_types(n)]
    top = set(ast.walk(tree)) - {inner for node in later for inner in ast.walk(node)}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, node in top) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.append((str(node.module), node in top))
    return found


def _for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def calls(file: Path) -> list[ast.Call]:
    """Every call in the file."""
    return [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]


@pytest.mark.parametrize("file", FILES, ids=IDS)
def test_imports_follow_the_arrows(file):
    room = file.relative_to(ROOT).parts[0]
    verb = room == "mechheads" and file.stem in VERBS
    allowed = {
        "tasks": {"mechheads.prompts", "mechheads.errors"},
        "circuits": {"mechheads"},
        "mechheads": {"tasks", "circuits"} if verb else set(),
    }[room]
    for module, _ in imports(file):
        if module.partition(".")[0] in ("mechheads", "tasks", "circuits"):
            assert module in allowed or module.partition(".")[0] in allowed, (
                f"{file.name} imports {module}; relative imports inside a package, and only "
                f"{sorted(allowed) or 'none'} from the others"
            )


def test_only_models_names_transformer_lens():
    namers = {
        f.name
        for f in FILES
        if any(m.partition(".")[0] == "transformer_lens" for m, _ in imports(f))
    }
    assert namers == {"models.py"}


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_imports_nothing_heavy_at_the_top(verb):
    light = {"collections.abc", "dataclasses", "inspect", "pathlib", "sys", "time", "typing"}
    assert {m for m, top in imports(ROOT / "mechheads" / f"{verb}.py") if top} <= light


@pytest.mark.parametrize("file", FILES, ids=IDS)
def test_no_postponed_annotations_and_no_prints_outside_of_output(file):
    text = file.read_text()
    assert "from __future__ import annotations" not in text  # jaxtyping would check nothing
    if file.stem not in {"cli", "display", "progress", "__main__", *VERBS}:
        assert "print" not in {n.func.id for n in calls(file) if isinstance(n.func, ast.Name)}
    assert "torch.load(" not in text
    assert "pickle" not in {m for m, _ in imports(file)}


def test_top_level_holds_what_it_should():
    known = {
        ".ci", ".git", ".gitignore", ".venv", ".pytest_cache", ".ruff_cache", "LICENSE", "Makefile",
        "README.md", "circuits", "constraints.txt", "mechheads", "notebooks", "pyproject.toml",
        "runs", "tasks", "tests", "mechheads.egg-info", "build", "dist",
    }  # fmt: skip
    assert {p.name for p in ROOT.iterdir()} <= known
