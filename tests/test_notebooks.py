"""Every notebook runs from top to bottom, with few prompts, and its stored outputs are small."""

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
    "05_filler_tokens": "N, LENGTH = 8, 12",
    "06_your_own_model_and_task": "",
}


def test_every_notebook_is_here():
    assert {file.stem for file in FOLDER.glob("*.ipynb")} == set(FEW)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", FEW)
def test_a_notebook_runs(name, tmp_path):
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", 4)
    (parameters,) = (c for c in notebook.cells if "parameters" in c.metadata.get("tags", ()))
    parameters.source += f"\n{FEW[name]}"
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()


@pytest.mark.parametrize("name", FEW)
def test_stored_outputs_are_there_and_small(name):
    file = FOLDER / f"{name}.ipynb"
    assert file.stat().st_size < 400_000
    notebook = nbformat.read(file, 4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    kinds = {kind for c in code for o in c.outputs for kind in o.get("data", {})}
    assert "application/vnd.plotly.v1+json" in kinds
    assert not any(o.output_type == "error" for c in code for o in c.outputs)
