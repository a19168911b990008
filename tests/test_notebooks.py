"""Every notebook runs with few prompts, uses public names, and its stored outputs are small."""

import ast
import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "notebooks"
FEW = {
    "01_quickstart": "N = 4",
    "02_standard_vs_sparse": 'TASKS = ("greater_than", "math")\nN = 4',
    "03_head_roles": "SEEDS, UPDATES, N = 2, 20, 12",
    "04_masking": 'TASKS = ("retrieval", "inference")\nN, DRAWS = 4, 2',
    "05_filler_tokens": "N, LENGTH = 16, 12",
    "06_your_own_model_and_task": "",
    "07_an_hour_with_one_head": "N = 8",
}


OURS = ("mechheads", "tasks", "circuits")
LONGEST = 180  # seconds of a full-size run
AN_HOUR = 60  # of notebook 07, which is to be read while it runs


def code_of(name: str) -> ast.Module:
    """All code cells of a notebook together."""
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", 4)
    return ast.parse("\n".join(c.source for c in notebook.cells if c.cell_type == "code"))


def names_of_ours(code: ast.Module) -> set[tuple[str, str]]:
    """(module, name) of whatever is imported from our packages or used as an attribute of one."""
    found = set()
    for node in ast.walk(code):
        if isinstance(node, ast.Import):
            found |= {(alias.name, "") for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {(str(node.module), alias.name) for alias in node.names}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found |= {(node.value.id, node.attr)}
    return {(module, name) for module, name in found if module.partition(".")[0] in OURS}


def is_public(module: str, name: str) -> bool:
    """In the module's __all__ where it has one or a module below it, and without underscores."""
    if any(part.startswith("_") for part in (*module.split("."), name)):
        return False
    home = import_module(module)
    listed = getattr(home, "__all__", [n for n in vars(home) if not n.startswith("_")])
    below = hasattr(home, "__path__") and find_spec(f"{module}.{name}") is not None
    return not name or name in listed or below


@pytest.mark.parametrize("name", FEW)
def test_a_notebook_uses_public_names_only(name):
    used = names_of_ours(code_of(name))
    assert used
    assert [pair for pair in sorted(used) if not is_public(*pair)] == []


def test_what_is_not_listed_or_has_an_underscore_is_not_public():
    assert is_public("mechheads", "load")
    assert is_public("mechheads.masking", "selection")
    assert not is_public("mechheads", "_HOMES")
    assert not is_public("mechheads", "import_module")
    assert not is_public("mechheads.discover", "_nothing")


@pytest.mark.parametrize("name", FEW)
def test_a_full_size_run_was_short(name):
    """In seconds of a processor: what else the machine was doing does not count."""
    stored = nbformat.read(FOLDER / f"{name}.ipynb", 4).metadata.get("mechheads", {})
    assert stored["seconds"] < (AN_HOUR if name.startswith("07") else LONGEST)


@pytest.mark.parametrize("name", FEW)
def test_no_path_of_a_machine_is_stored(name):
    text = (FOLDER / f"{name}.ipynb").read_text(encoding="utf-8")
    assert re.findall(r"/(?:home|root|tmp|Users|work|mnt)/[^\s\"]*", text) == []


def test_every_notebook_is_here():
    assert {file.stem for file in FOLDER.glob("*.ipynb")} == set(FEW)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", FEW)
def test_a_notebook_runs(name, tmp_path):
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", 4)
    (parameters,) = (c for c in notebook.cells if "parameters" in c.metadata.get("tags", ()))
    parameters.source += f"\n{FEW[name]}"
    where = {"metadata": {"path": str(tmp_path)}}
    for _ in range(2 if name.startswith("06") else 1):  # what it writes must not be in its way
        NotebookClient(notebook, timeout=300, resources=where).execute()


@pytest.mark.parametrize("name", FEW)
def test_stored_outputs_are_there_and_small(name):
    file = FOLDER / f"{name}.ipynb"
    assert file.stat().st_size < 400_000
    notebook = nbformat.read(file, 4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    kinds = {kind for c in code for o in c.outputs for kind in o.get("data", {})}
    assert {"application/vnd.plotly.v1+json", "image/png"} <= kinds  # GitHub shows pictures only
    plots = [c for c in code if c.source.rpartition("\n")[2].endswith((".plot()", "edges()"))]
    for cell in plots:
        assert any("image/png" in o.get("data", {}) for o in cell.outputs)
    assert not any(o.output_type == "error" for c in code for o in c.outputs)
