"""Accuracies under several conditions: intervals, paired tests, and what was not asked."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from filler_cases import COLUMNS

from mechheads.filler.accuracy import Accuracies, Answers, ask, holm, mcnemar
from mechheads.filler.insertion import make


def test_mcnemar_by_hand():
    before = torch.tensor([True] * 6 + [False] * 4)
    after = torch.tensor([True, *[False] * 5, True, *[False] * 3])
    # 5 lost, 1 won: two-sided binomial 2 * (1 + 6) / 64.
    assert mcnemar(before, after) == pytest.approx(14 / 64)
    assert mcnemar(before, before) == 1.0


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def answered(model: str, *rows: list[int]) -> Answers:
    """A model that answered so, under as many conditions as there are rows."""
    names = ("none", "mless", "mful")[: len(rows)]
    right = {name: torch.tensor(row).bool() for name, row in zip(names, rows, strict=True)}
    said = {name: ("",) * len(row) for name, row in zip(names, rows, strict=True)}
    return Answers(model, names, (0, 5, 5)[: len(rows)], right, said, dict.fromkeys(names, 0.5))


def test_p_values_are_corrected_over_all_models_together():
    base, worse = [1] * 6 + [0] * 2, [0] * 8
    frame: Any = Accuracies((answered("a", base, worse), answered("b", base, worse, base))).frame()
    # Alone 2 / 64; three comparisons, of which the two smallest are equal.
    p = {(row.model, row.condition): row.p_value for row in frame.itertuples()}
    assert p["a", "mless"] == pytest.approx(3 * 2 / 64)
    assert p["b", "mless"] == pytest.approx(3 * 2 / 64)
    assert p["b", "mful"] == 1.0
    assert math.isnan(p["a", "none"])


def test_what_was_not_asked_has_a_row_without_numbers(tmp_path):
    some = answered("a", [1, 0, 1, 1], [0, 0, 1, 1])
    found = replace(some, conditions=("none", "70", "mless"), tokens=(0, None, 5))
    frame: Any = Accuracies((found,)).frame()
    assert frame["condition"].tolist() == ["none", "70", "mless"]
    assert frame.iloc[1, 2:].isna().all()
    assert frame["n"].tolist()[::2] == [4, 4]
    saved = Accuracies((found,)).save(tmp_path)
    assert Accuracies.load(saved).frame().equals(frame)


def test_accuracies_have_intervals(mini, questions):
    prompts = {c: make(mini, questions, c, length=5) for c in ("none", "mless")}
    found = ask(mini, questions, prompts, max_tokens=4, stop=("\n",), quiet=True)
    frame = Accuracies((found,)).frame()
    assert frame.columns.tolist() == COLUMNS
    first = frame.iloc[0]
    assert first["correct"] >= 10  # mini does this task
    assert first["low"] <= first["accuracy"] <= first["high"]
    # Wilson's interval by hand.
    n, p, z = 12, first["accuracy"], 1.959964
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    assert first["low"] == pytest.approx(middle - half, abs=1e-6)
    assert math.isnan(first["p_value"])
    assert frame["tokens"].tolist() == [0, 5]
    # One token is never enough for a line break after the answer.
    short = ask(mini, questions[:4], {"none": prompts["none"][:4]}, max_tokens=1, stop=("\n",))
    assert short.cut_off == {"none": 1.0}
    assert found.cut_off["none"] < 1
