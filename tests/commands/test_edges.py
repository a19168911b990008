"""The commands discover, compare and verify at the level of edges."""

import json
from pathlib import Path

import pandas as pd
import pytest

from mechheads.compare import compare
from mechheads.discover import discover
from mechheads.errors import MechheadsError
from mechheads.sweeping.cluster import _can_share
from mechheads.sweeping.grid import Cell
from mechheads.verify import verify

FEW = {"task": "ioi", "n": 4, "test": 4, "draws": 2, "quiet": True}


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A small run on the embedded model."""
    out = tmp_path_factory.mktemp("runs")
    folder = discover(level="edges", steps="2", out=str(out), **FEW).folder
    assert folder is not None
    return folder


def test_a_run_has_all_its_files(run):
    names = {file.name for file in run.iterdir()}
    assert names == {
        "arrays.safetensors",
        "curve.csv",
        "edges.csv",
        "report.html",
        "report.md",
        "result.json",
        "timings.json",
    }
    assert run.name.startswith("ioi-mini-edges-")
    content = json.loads((run / "result.json").read_text())
    edges, curve = pd.read_csv(run / "edges.csv"), pd.read_csv(run / "curve.csv")
    assert len(edges) == content["headline"]["needed"]
    assert content["headline"]["edges"] == curve.k.max() == 1264
    assert content["settings"]["steps"] == "2"
    report = (run / "report.md").read_text()
    assert "--level edges" in report
    assert "| method | (not used) |" in report


def test_verify_reruns_it(run, capsys):
    verify(str(run))
    assert capsys.readouterr().out.splitlines()[-1].endswith("identical")


def test_saved_runs_are_compared_at_their_own_level(run, tmp_path, capsys):
    found, folder = compare(standard=str(run), sparse=str(run), out=str(tmp_path), quiet=True)
    assert "circuit edges" in capsys.readouterr().out
    assert found.tasks[0].edges.multiplier == 1.0
    assert folder is not None
    assert {"comparison.csv", "report.html"} <= {file.name for file in folder.iterdir()}
    heads = discover(out=str(tmp_path), method="attribution", **FEW).folder
    with pytest.raises(MechheadsError, match=r"edges.* of heads.*same --level"):
        compare(standard=str(run), sparse=str(heads), out=str(tmp_path), quiet=True)


@pytest.mark.parametrize(
    ("given", "flag"),
    [
        ({"k": 4}, "--k"),
        ({"method": "ig"}, "--method"),
        ({"search": "prune"}, "--search"),
        ({"heads": "L0H1"}, "--heads"),
        ({"circuit": "a.json"}, "--circuit"),
        ({"effects": "a.csv"}, "--effects"),
        ({"direction": "denoising"}, "--direction"),
    ],
)
def test_what_belongs_to_heads_is_refused(given, flag, tmp_path):
    with pytest.raises(MechheadsError, match=f"--level edges and {flag} cannot be combined"):
        discover(level="edges", out=str(tmp_path / "runs"), **FEW, **given)
    assert not (tmp_path / "runs").exists()


def test_the_patching_of_edges_is_not_shared_by_workers():
    heads, edges = ((("level", level), ("method", "patch")) for level in ("heads", "edges"))
    assert _can_share(Cell("discover", heads))
    assert not _can_share(Cell("discover", edges))
