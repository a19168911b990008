"""The command prefix: what it writes, says and refuses."""

import json
from typing import Any

import pandas as pd
import pytest
from filler_cases import COLUMNS

from mechheads.engine.generate import generate
from mechheads.errors import MechheadsError
from mechheads.filler.conditions import INSTRUCTION, PLACES
from mechheads.prefix import prefix


def test_a_run_has_all_its_files(tmp_path, capsys):
    prefix(
        conditions="none,mless,mful,random,arm",
        n=12,
        length=10,
        max_tokens=2,
        models="mini,mini-sparse",
        out=str(tmp_path),
        quiet=True,
    )
    (folder,) = tmp_path.iterdir()
    said = capsys.readouterr().out
    assert said.endswith("report.html\n")
    assert "differ" in said
    frame = pd.read_csv(folder / "accuracy.csv")
    assert frame.columns.tolist() == COLUMNS
    assert frame["condition"].tolist() == ["none", "mless", "mful", "random", "arm"] * 2
    assert frame["tokens"].tolist() == [0, 10, 10, 10, 0] * 2
    found = json.loads((folder / "result.json").read_text())["headline"]
    answers = pd.read_csv(folder / "answers.csv")
    of_arm = frame[frame["condition"] == "arm"]
    for model, correct in zip(of_arm["model"], of_arm["correct"], strict=True):
        listed = answers[(answers["model"] == model) & (answers["condition"] == "arm")]
        assert listed["right"].sum() == correct
    weights = pd.read_csv(folder / "attention.csv")
    columns = ["model", "condition", "panel", "position", "token", "weight", "low", "high"]
    assert weights.columns.tolist() == columns
    assert set(weights["condition"]) == {"none", "mless", "mful", "random"}
    assert 0 <= found["parts"]["mini, mless"]["one_factor_per_query_p"] <= 1
    assert found["parts"]["mini, mless"]["accuracy"] == pytest.approx(frame["accuracy"][1])
    assert "95% intervals over prompts" in (folder / "report.md").read_text()


def test_sweep_points_that_do_not_fit_are_named_and_have_empty_rows(tmp_path, capsys):
    given: dict[str, Any] = {"n": 4, "length": 4, "max_tokens": 10, "conditions": "none,mless"}
    prefix(sweep="length,place", **given, out=str(tmp_path), quiet=True)
    (folder,) = tmp_path.iterdir()
    assert "length 70: not asked: a prompt of" in capsys.readouterr().out
    lengths = pd.read_csv(folder / "sweep_length.csv")
    assert lengths["length"].tolist() == list(range(0, 80, 10))
    assert lengths["accuracy"].isna().tolist() == [False] * 7 + [True]
    assert lengths["tokens"].tolist()[:7] == list(range(0, 70, 10))
    places = pd.read_csv(folder / "sweep_place.csv")
    assert places["place"].fillna("none").tolist() == ["none", *PLACES]
    # Four questions of several lengths: accuracies alone, and why.
    report = (folder / "report.md").read_text()
    assert "length 70" in report
    warnings = json.loads((folder / "result.json").read_text())["warnings"]
    assert any("length 70: not asked" in words for words in warnings)
    assert "attention was not measured: only" in report
    assert pd.read_csv(folder / "attention.csv").empty


def test_random_places_have_attention_too(tmp_path):
    given: dict[str, Any] = {"place": "random", "conditions": "none,mless", "max_tokens": 1}
    prefix(n=12, length=4, **given, out=str(tmp_path), quiet=True)
    (folder,) = tmp_path.iterdir()
    assert not pd.read_csv(folder / "attention.csv").empty


def test_problems_from_a_file_begin_with_the_instruction(tmp_path, monkeypatch):
    file = tmp_path / "maths.jsonl"
    rows = [{"problem": f"What is {a}\n\n+ 1?", "answer": str(a + 1)} for a in range(6)]
    file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    seen = []

    def see(model, prompts, *args, **kwargs):
        seen.extend(prompts)
        return generate(model, prompts, *args, **kwargs)

    monkeypatch.setattr("mechheads.filler.accuracy.generate", see)
    given: dict[str, Any] = {"conditions": "none,mless", "quiet": True, "max_tokens": 2, "n": 6}
    prefix(task=str(file), length=6, out=str(tmp_path / "runs"), **given)
    (folder,) = (tmp_path / "runs").iterdir()
    assert set(pd.read_csv(folder / "accuracy.csv")["n"]) == {6}
    assert all(text.startswith(f"{INSTRUCTION}\n\nQuestion: What") for text in seen[:6])
    assert all(text.startswith(f"{INSTRUCTION}\n\n//////\n\nQuestion:") for text in seen[6:])
    with pytest.raises(MechheadsError, match="between needs an instruction"):
        prefix(task=str(file), instruction="", out=str(tmp_path / "more"), **given)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"task": "math_calc"}, "Did you mean"),
        ({"head": "L9H9"}, "L9H9"),
        ({"head": "first"}, "first"),
        ({"filler": " "}, "--filler"),
        ({"word": ""}, "--word"),
        ({"length": -1}, "--length takes 0 or more"),
        ({"length": 0}, "--head auto needs a --length above 0"),
        ({"length": 110}, "smaller --length"),
        ({"max_tokens": 0}, "--max-tokens takes 1 or more"),
        ({"conditions": "mless"}, "must include none"),
        ({"conditions": "none,mles"}, "Did you mean"),
        ({"conditions": "none,arm"}, "besides none"),
        ({"sweep": "lenght"}, "Did you mean"),
        ({"models": "mini,mini"}, "twice"),
        ({"n": 1}, "--n takes 4 or more"),
        ({"arm_c": -1.0}, "--arm-c"),
        ({"arm_percentile": 0.0}, "--arm-percentile"),
        ({"arm_pmin": 0.3}, "--arm-pmin takes 0 to 0.25"),
        ({"instruction": "Think."}, "--instruction"),
        ({"task": "math"}, "between needs an instruction"),
    ],
)
def test_wrong_input_is_named_before_anything_is_asked(wrong, words, tmp_path, monkeypatch):
    def never(*args, **kwargs):
        raise AssertionError("something was asked")

    monkeypatch.setattr("mechheads.filler.accuracy.generate", never)
    given: dict[str, Any] = {"n": 4, "length": 6} | wrong
    with pytest.raises(MechheadsError, match=words):
        prefix(**given, out=str(tmp_path), quiet=True)
    assert not list(tmp_path.iterdir())
