"""The experiment as a whole: what it says of questions that are missing."""

import pytest

from mechheads.masking.experiment import mask_tasks
from mechheads.metrics import text as quality
from mechheads.models.model import encoder_of
from mechheads.prompts import Question, Questions
from mechheads.prompts.partitions import split_questions


def test_missing_questions_and_a_weak_model_are_warned_about(tiny):
    long = "Then " * tiny.cfg.n_ctx
    starts = {"some": "Then", "other": "Mary", "few": long}
    sets = [
        Questions(name, tuple(Question(f"{start} {i}", ("x",), name) for i in range(9)))
        for name, start in starts.items()
    ]
    split = split_questions(encoder_of(tiny), sets, n=4, rank=4, max_tokens=2)
    found = mask_tasks(
        tiny, split, [quality.find("exact")], method="probe", k="1", max_tokens=2, quiet=True
    )
    assert found.warnings == (
        f"{found.model} answers few questions correctly even with all heads: some (0%), other "
        "(0%).",
        "9 questions are too long for the model.",
        "few has too few questions (0).",
    )
    assert (found.headline["too_long"], found.headline["left_out"]) == (9, {"few": 0})
    assert found.headline["parts"]["some"]["top_loses_more"] == pytest.approx(0.0)
    assert found.sentence.startswith("Loss of exact match, mean over k: some 0.00 without the top")
