"""Nothing is called identical that was not compared."""

import hashlib
import json
import math
import shutil

import pytest
from safetensors.torch import load_file, save_file

from mechheads.discover import discover
from mechheads.errors import MechheadsError
from mechheads.runs.folder import RESULT, Record, signature
from mechheads.verify import verify
from mechheads.verifying.differences import compare_files, compare_values


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A small run."""
    _, folder = discover(
        task="math", n=4, test=4, draws=2, out=str(tmp_path_factory.mktemp("runs")), quiet=True
    )
    return folder


def sign(folder, content):
    """Give an edited folder fresh digests and a fresh signature, as a forger would."""
    content["files"] = {
        f.name: hashlib.sha256(f.read_bytes()).hexdigest()
        for f in folder.iterdir()
        if f.name not in (RESULT, "timings.json")
    }
    parts = [content[name] for name in ("command", "settings", "headline", "provenance")]
    record = Record(*parts, warnings=tuple(content["warnings"]))
    content["signature"] = signature(record, content["files"])
    (folder / RESULT).write_text(json.dumps(content))


def change_report(folder, content):
    page = folder / "report.html"
    page.write_text(page.read_text().replace("heads", "head that explains 100 %", 1))


def change_circuit(folder, content):
    circuit = json.loads((folder / "circuit.json").read_text())
    circuit["heads"] = circuit["heads"][:1]
    (folder / "circuit.json").write_text(json.dumps(circuit))


def change_arrays(folder, content):
    file = folder / "arrays.safetensors"
    tensors = load_file(file)
    tensors["curve.values"] += 1
    save_file(tensors, file)


def remove_tables(folder, content):
    for file in folder.glob("*.csv"):
        file.unlink()


def empty_headline(folder, content):
    content["headline"] = {}


def empty_table(folder, content):
    (folder / "curve.csv").write_text("")


def change_importances(folder, content):
    (folder / "importances.json").write_text("[" * 100_000)


def change_warnings(folder, content):
    content["warnings"] = ["all is well"]


FORGERIES = {
    change_report: "report.html: different: its bytes differ",
    change_circuit: "circuit.json: different: heads was",
    change_arrays: "arrays.safetensors: different",
    remove_tables: "curve.csv: different: it is missing from the folder",
    empty_headline: "headline: different: .* is only in one of the two",
    empty_table: "curve.csv: different: it cannot be read",
    change_importances: "importances.json: different: it cannot be read",
    change_warnings: "warnings: different",
}


@pytest.mark.parametrize("change", FORGERIES, ids=[f.__name__ for f in FORGERIES])
def test_a_forged_folder_is_different(change, run, tmp_path):
    folder = tmp_path / run.name
    shutil.copytree(run, folder)
    content = json.loads((folder / RESULT).read_text())
    change(folder, content)
    (folder / RESULT).write_text(json.dumps(content))
    with pytest.raises(MechheadsError, match="is damaged"):
        verify(str(folder), quiet=True)  # without a fresh signature
    sign(folder, content)
    with pytest.raises(MechheadsError, match=f"DIFFERENT numbers now.*{FORGERIES[change]}"):
        verify(str(folder), quiet=True)


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity"])
def test_a_headline_that_is_not_a_number_is_damaged(text, run, tmp_path):
    folder = tmp_path / run.name
    shutil.copytree(run, folder)
    file = folder / RESULT
    needed = json.loads(file.read_text())["headline"]["needed"]
    file.write_text(file.read_text().replace(f'"needed": {needed}', f'"needed": {text}'))
    with pytest.raises(MechheadsError, match="is damaged"):
        verify(str(folder), quiet=True)


def test_values_are_compared_to_the_last_one():
    assert compare_values({"a": [1.0, {"b": None}]}, {"a": [1.0, {"b": None}]}).relative == 0
    assert compare_values({"a": 1.0}, {"a": 1.1}).relative == pytest.approx(0.1)
    assert compare_values(math.nan, math.nan).relative == 0
    for one, two in (
        ({"a": 1}, {"a": 1, "b": 2}),
        ([1], [1, 2]),
        (math.nan, 1.0),
        (1.0, math.inf),
        (None, math.nan),
        (10**400, 1),
        (10**400, 10**401),
        (10**400, 1.5),
        (True, 1),
        ("1", 1),
    ):
        assert compare_values(one, two).relative == math.inf
        assert compare_values(two, one).relative == math.inf


def test_infinity_hides_no_difference_in_a_table(tmp_path):
    one, two = tmp_path / "one.csv", tmp_path / "two.csv"
    one.write_text("a\ninf\n1\n")
    two.write_text("a\ninf\n2\n")
    assert compare_files(one, two).relative == 1.0
    two.write_text("a\n1\n1\n")
    assert compare_files(one, two).relative == math.inf
