"""The command mask: what it writes, says and refuses, and which questions it asks."""

import json
import math
from typing import Any

import pandas as pd
import pytest
from masking_cases import groups

from mechheads.errors import MechheadsError
from mechheads.jobs.masking import make_questions
from mechheads.mask import mask
from mechheads.masking.experiment import Masking
from mechheads.masking.matrix import HIGH_ORDER, LOW_ORDER
from mechheads.models.load import load
from mechheads.scoring.registry import METHODS


def test_a_run_has_all_its_files(tmp_path, capsys):
    mask(
        tasks="retrieval,math_calculation",
        n=4,
        rank=4,
        draws=2,
        k="2,10%",
        max_tokens=4,
        matrix=True,
        out=str(tmp_path),
        quiet=True,
    )
    (folder,) = tmp_path.iterdir()
    assert capsys.readouterr().out.endswith("report.html\n")
    frame = pd.read_csv(folder / "masking.csv")
    assert frame.columns.tolist() == ["function", "selection", "k", "draw", "metric", "value"]
    assert set(frame["k"]) == {0, 2, 3}
    assert set(frame["selection"]) == {"none", "top", "random"}
    said = [json.loads(line) for line in (folder / "generations.jsonl").read_text().splitlines()]
    assert len(said) == 2 * 4 * (1 + 2 * 3)
    assert set(said[0]) == {"function", "selection", "k", "draw", "prompt", "answer", "gold"}
    again = Masking.load(folder)
    totals: list[Any] = [table["value"].sum() for table in (again.frame(), frame)]
    assert math.isclose(*totals, rel_tol=1e-6)
    report = (folder / "report.html").read_text()
    assert "chrF" in report
    assert "95% intervals over questions" in report
    headline = json.loads((folder / "result.json").read_text())["headline"]
    assert headline["labels"] == {"exact": "exact match", "chrf": "chrF"}
    assert (headline["too_long"], headline["left_out"]) == (0, {})
    lost = headline["parts"]["Retrieval"]
    assert lost["top_loses_more"] == pytest.approx(
        lost["lost_without_top"] - lost["lost_without_random"]
    )
    assert "hierarchy: difference, low" in headline
    assert (folder / "matrix.csv").is_file()
    ranked = pd.read_csv(folder / "ranking.csv")
    assert len(ranked) == 64


def test_questions_of_a_file_are_ranked_by_the_probe(tmp_path):
    file = tmp_path / "q.jsonl"
    rows = [
        {"question": f"{a} + {b}", "answer": str(a + b), "function": "Sum"}
        for a in range(3)
        for b in range(4)
    ]
    rows += [
        {"question": f"Say {name}", "answer": name, "function": "Copy"}
        for name in ("Mary", "John", "Tom", "Anna", "James", "Paul", "Mark", "Lucy")
    ]
    file.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    mask(
        tasks=str(file),
        method="probe",
        n=4,
        rank=4,
        draws=0,
        k="elbow",
        max_tokens=2,
        metrics="composite",
        out=str(tmp_path / "runs"),
        quiet=True,
    )
    (folder,) = (tmp_path / "runs").iterdir()
    table: Any = pd.read_csv(folder / "masking.csv")
    assert set(table["function"]) == {"Copy", "Sum"}
    probe: Any = pd.read_csv(folder / "probe.csv")
    elbows = probe.groupby("function")["before_elbow"].sum()
    tops = table[table["selection"] == "top"].set_index("function")["k"]
    assert elbows.to_dict() == tops.to_dict()
    headline = json.loads((folder / "result.json").read_text())["headline"]
    assert headline["probe_low"] < headline["probe_accuracy"] + 1e-9
    assert headline["labels"]["composite"].startswith("composite accuracy")
    with pytest.raises(MechheadsError, match="no corrupted prompts"):
        mask(tasks=str(file), method="patch", out=str(tmp_path), quiet=True)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"tasks": "retrieva"}, "Did you mean"),
        ({"method": "prob"}, "Unknown method"),
        ({"k": "33"}, "the model has 32"),
        ({"k": "17"}, "fewer than 17 other heads"),
        ({"metrics": "chr"}, "Unknown text metric"),
        ({"n": 2}, "--n takes 4 or more"),
        ({"scale": 2.0}, "--scale"),
        ({"max_tokens": 0}, "--max-tokens"),
        ({"draws": -1}, "--draws"),
        ({"metrics": "exact,exact"}, "--metrics lists a metric twice"),
        ({"metrics": "comet", "comet_command": "no-such-program"}, "unbabel-comet"),
        ({"k": "nan%"}, "--k takes"),
        ({"k": "elbow"}, "--k elbow needs --method probe"),
        ({"k": "elbow", "method": "probe", "matrix": True}, "add --matrix-k"),
        ({"matrix_k": "2"}, "--matrix-k needs --matrix"),
        ({"matrix": True, "matrix_k": "17"}, "--matrix-k 17 leaves"),
        ({"matrix": True, "matrix_k": "2,4"}, "--matrix-k takes one"),
        ({"matrix": True, "matrix_k": "x"}, "--matrix-k takes"),
        ({"k": "20", "draws": 0, "matrix": True}, "--matrix-k 20 leaves"),
        ({"updates": "3"}, "method patch has no such option"),
        ({"updates": "3", "method": "probe"}, "method probe has no such option"),
        ({"tasks": "retrieval", "method": "probe"}, "needs two or more"),
        ({"tasks": "retrieval,retrieval"}, "twice"),
    ],
)
def test_wrong_input_is_named_and_writes_nothing(wrong, words, tmp_path):
    given: dict[str, Any] = {"tasks": "retrieval", "n": 4, "rank": 4, "max_tokens": 2} | wrong
    with pytest.raises(MechheadsError, match=words):
        mask(**given, out=str(tmp_path), quiet=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("method", METHODS)
def test_every_method_ranks(method, tmp_path):
    owned: dict[str, Any] = {"gating": {"updates": "2", "seeds": "1"}, "ig": {"steps": "2"}}
    mask(
        tasks="retrieval",
        method=method,
        signed=True,
        n=4,
        rank=4,
        draws=1,
        k="1",
        max_tokens=2,
        out=str(tmp_path),
        quiet=True,
        **owned.get(method, {}),
    )
    (folder,) = tmp_path.iterdir()
    assert len(pd.read_csv(folder / "ranking.csv")) == 32


@pytest.mark.shared
def test_cogqa_runs_as_it_is(shared, tmp_path):
    file = shared / "data" / "cogqa" / "test.json"
    if not file.is_file():
        pytest.skip("CogQA is not in ../shared")
    mask(
        tasks=str(file),
        model=str(shared / "models" / "tinyllamas-stories15M"),
        method="probe",
        n=4,
        rank=6,
        draws=1,
        k="4",
        max_tokens=4,
        out=str(tmp_path),
        quiet=True,
    )
    (folder,) = tmp_path.iterdir()
    headline = json.loads((folder / "result.json").read_text())["headline"]
    functions = {*pd.read_csv(folder / "masking.csv")["function"], *headline["left_out"]}
    assert functions == {*LOW_ORDER, *HIGH_ORDER}
    assert headline["too_long"] > 0


def test_questions_of_built_in_tasks_share_no_group():
    model = load("mini", quiet=True)
    names = ["retrieval", "math_calculation", "inference"]
    parts = make_questions(
        model, names, {"n": 12, "rank": 12, "seed": 0, "split": "test", "max_tokens": 8}
    )
    assert not groups(parts.ranked) & groups(parts.asked)
    for part in (*parts.ranked, *parts.asked):
        assert part.prompts is not None
        assert [q.prompt for q in part.items] == [pair.clean for pair in part.prompts.pairs]


@pytest.mark.shared
def test_cogqa_is_split_by_main_question(shared, tinystories):
    file = shared / "data" / "cogqa" / "test.json"
    if not file.is_file():
        pytest.skip("CogQA is not in ../shared")
    parts = make_questions(
        tinystories,
        [str(file)],
        {"n": 16, "rank": 16, "seed": 0, "split": "test", "max_tokens": 32},
    )
    assert not groups(parts.ranked) & groups(parts.asked)
    assert parts.too_long > 0
    assert min(map(len, parts.ranked)) >= 4
    assert len(parts.asked) + len(parts.left_out) == 8
