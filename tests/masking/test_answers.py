"""Answers without the top heads and without random ones, and what they lose."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from fake_comet import write_comet_score
from masking_cases import names_questions

from mechheads.masking.answers import Condition, FunctionAnswers, Loss, mask_heads
from mechheads.masking.experiment import Masking
from mechheads.masking.report import broken
from mechheads.metrics import text as quality
from mechheads.models.load import load


def test_comet_starts_once_a_function_and_all_metrics_have_a_figure(tiny, tmp_path):
    comet_score = write_comet_score(tmp_path)
    qualities = [quality.find(name, str(comet_score)) for name in quality.NAMES]
    ranking = [(i, j) for i in range(2) for j in range(4)]
    answers = mask_heads(
        tiny,
        names_questions("names"),
        ranking,
        [1, 2],
        qualities,
        draws=2,
        max_tokens=3,
        quiet=True,
    )
    assert comet_score.with_name("comet-score.starts").read_text() == "."
    assert answers.of("none", 0, "comet").tolist() == [[1.0] * 4]
    for i, texts in enumerate(answers.said):
        same = [float(a.split() == b.split()) for a, b in zip(texts, answers.said[0], strict=True)]
        assert answers.values[i, answers.metrics.index("comet")].tolist() == same
    found = Masking(
        "m", "given", "last", (answers,), {q.name: q.label for q in qualities}, ("exact",)
    )
    drawn: Any = found.plot().to_dict()
    curves = [trace for trace in drawn["data"] if "name" in trace]
    assert len({trace["marker"]["symbol"] for trace in curves}) == 2 * len(quality.NAMES)
    assert tuple(drawn["layout"]["yaxis"]["range"]) == (0, 1.02)


def test_masking_no_head_changes_nothing(tiny):
    questions = names_questions("names")
    qualities = [quality.find("exact"), quality.find("chrf")]
    ranking = [(i, j) for i in range(2) for j in range(4)]
    answers = mask_heads(
        tiny, questions, ranking, [2, 3], qualities, draws=3, scale=1.0, max_tokens=4, quiet=True
    )
    assert all(texts == answers.said[0] for texts in answers.said)
    assert [c.selection for c in answers.conditions] == ["none", *["top", *["random"] * 3] * 2]
    assert torch.equal(answers.values[0], answers.values[1])


def test_a_head_that_says_the_answer_is_missed(checkpoint):
    """L0H1 writes " Mary" whatever is asked: without it, and only without it, she is not named."""
    model: Any = load(str(checkpoint("gpt2")))
    token = model.tokenizer.encode(" Mary")[0]
    with torch.no_grad():
        for block in model.blocks:
            for part in (block.mlp.W_out, block.mlp.b_out, block.attn.W_O, block.attn.b_O):
                part.zero_()
        attention = model.blocks[0].attn
        attention.W_V[1].zero_()
        attention.b_V[1].zero_()
        attention.b_V[1, 0] = 1.0
        word = model.W_U[:, token] - model.W_U.mean(1)
        attention.W_O[1, 0] = 8 * word / word.norm()
    ranking = [(0, 1), *((i, j) for i in range(2) for j in range(4) if (i, j) != (0, 1))]
    for positions in ("last", "all"):
        answers = mask_heads(
            model,
            names_questions("names"),
            ranking,
            [1, 3],
            [quality.find("exact")],
            positions=positions,
            max_tokens=1,
            quiet=True,
        )
        for condition, value in zip(answers.conditions, answers.values[:, 0].mean(1), strict=True):
            assert value == (0.0 if condition.selection == "top" else 1.0)
        found = Masking("m", "given", positions, (answers,), {"exact": "exact match"}, ("exact",))
        assert found.losses("exact") == {"names": Loss(1.0, 0.0, 1.0, 1.0)}
        assert found.plot().to_dict()["data"]
        assert len(broken(answers)) == 4


def test_intervals_are_paired_overnames_questions():
    """Top and random differ by the same on every question: however far these are apart."""
    conditions = [Condition("none", 0, 0, ()), Condition("top", 1, 0, ((0, 0),))]
    conditions += [Condition("random", 1, i, ((0, 1 + i),)) for i in range(2)]
    whole = torch.tensor([1.0, 0.8, 0.6, 0.4])
    values = torch.stack([whole, whole - 0.4, whole - 0.2, whole])[:, None]
    answers = FunctionAnswers(
        "f", (), ("p",) * 4, (("g",),) * 4, tuple(conditions), (("",) * 4,) * 4, ("chrf",), values
    )
    loss = answers.loss("chrf")
    assert (loss.top, loss.random) == pytest.approx((0.4, 0.1))
    assert (loss.more, loss.low, loss.high) == pytest.approx((0.3, 0.3, 0.3))
    (row,) = answers.rows("chrf")
    assert (row["more_low"], row["more_high"]) == pytest.approx((0.3, 0.3))
    assert row["top_low"] < row["top"] < row["top_high"]
    assert row["overlap"] == 0
    bare = replace(answers, conditions=tuple(conditions[:2]), values=values[:2])
    assert math.isnan(bare.rows("chrf")[0]["more"])
    assert math.isnan(bare.loss("chrf").random)
