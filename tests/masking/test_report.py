"""The report's sections."""

from dataclasses import replace

import torch

from mechheads.masking.answers import Condition, FunctionAnswers
from mechheads.masking.report import broken_section


def test_nothing_broken_is_said():
    conditions = (Condition("none", 0, 0, ()), Condition("top", 1, 0, ((0, 0),)))
    values = torch.zeros(2, 0, 1)
    answers = FunctionAnswers(
        "f", (), ("p",), (("Ann",),), conditions, (("Ann",), ("Ann",)), (), values
    )
    assert "1 of 1 answers are right with all heads" in broken_section(answers).text
    wrong = replace(answers, said=(("Bob",), ("Bob",)))
    assert "none is right even" in broken_section(wrong).text
    lost = replace(answers, said=(("Ann",), ("Bob",)))
    assert broken_section(lost).frame is not None
