"""Which questions rank heads and which are answered: no group is on both sides."""

import pytest
from masking_cases import groups

from mechheads.errors import MechheadsError
from mechheads.models.model import encoder_of
from mechheads.prompts import Question, Questions
from mechheads.prompts.partitions import split_questions, split_sets


def test_no_group_ranks_and_is_answered(tiny):
    """Groups of three, shared by both functions."""
    sets = [
        Questions(
            name, tuple(Question(f"{name} {i}", ("x",), name, f"g{i // 3}") for i in range(n))
        )
        for name, n in (("one", 30), ("two", 18))
    ]
    parts = split_questions(encoder_of(tiny), sets, n=8, rank=8, max_tokens=2)
    ranked, asked = groups(parts.ranked), groups(parts.asked)
    assert ranked
    assert asked
    assert not ranked & asked
    assert all(4 <= len(part) <= 8 for part in (*parts.ranked, *parts.asked))
    train, test = zip(*split_sets(sets, [22, 13]), strict=True)
    for part, (one, two) in zip(sets, zip(train, test, strict=True), strict=True):
        assert sorted(one + two) == list(range(len(part)))
    assert not groups(map(Questions.only, sets, train)) & groups(map(Questions.only, sets, test))


def test_questions_that_do_not_fit_are_counted(tiny):
    long = "Then " * tiny.cfg.n_ctx
    sets = [
        Questions("some", tuple(Question(f"Then {i}", ("x",), "some") for i in range(9))),
        Questions("few", tuple(Question(f"{long}{i}", ("x",), "few") for i in range(9))),
    ]
    parts = split_questions(encoder_of(tiny), sets, n=4, rank=4, max_tokens=2)
    assert [part.name for part in parts.asked] == ["some"]
    assert (parts.too_long, parts.left_out) == (9, {"few": 0})
    with pytest.raises(MechheadsError, match="no function has 8 questions"):
        split_questions(encoder_of(tiny), sets[1:], n=4, rank=4, max_tokens=2)
