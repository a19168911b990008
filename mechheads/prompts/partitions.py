"""Which prompts rank heads or fit gates, and which judge them: no group is on both sides.

A group of questions (CogQA: a main question) may include several functions; all of its questions
go to one side.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mechheads.errors import MechheadsError

from .batches import batches
from .encoder import Encoder
from .pairs import LEAST, Prompts
from .questions import Question, Questions

USUAL, USUAL_TEST = 96, 32  # prompts to fit gates to, and to test them on


def wanted(n: int | None, test: int | None) -> int:
    """How many prompts to make for fitting and testing."""
    return (n or USUAL) + (test or USUAL_TEST)


def split_prompts(
    encoder: Encoder, made: Prompts, n: int | None, test: int | None
) -> tuple[Prompts, Prompts]:
    """Prompts to fit and prompts to test: no group is in both, and all fit the model's context.

    Numbers not given are the usual ones, or what a small task has.
    """
    tested = test or min(USUAL_TEST, len(made) - n if n else len(made) // 4)
    fitted = n or len(made) - tested
    one, two = made.first(fitted + tested).split_at(fitted)
    if len(made) < fitted + tested or min(len(one), len(two)) < LEAST:
        raise MechheadsError(
            f"{made.task} has {len(made)} different prompts, too few to fit {n or USUAL} and test "
            f"{test or USUAL_TEST}. Request fewer with --n and --test."
        )
    both = one, two.first(tested)
    for part in both:
        list(batches(encoder, part))
    return both


@dataclass(frozen=True)
class QuestionSplit:
    """By function, questions to rank the heads with and others to answer.

    `too_long` is how many did not fit the model's context; `left_out` are the functions with too
    few questions, and how many they had.
    """

    ranked: tuple[Questions, ...]
    asked: tuple[Questions, ...]
    too_long: int = 0
    left_out: Mapping[str, int] = field(default_factory=dict)


def split_questions(
    encoder: Encoder, sets: Sequence[Questions], *, n: int, rank: int, max_tokens: int
) -> QuestionSplit:
    """Up to `rank` questions per function to rank heads with, and up to n others to answer."""
    names = [questions.name for questions in sets]
    if len(set(names)) < len(names):
        raise MechheadsError(f"two of the --tasks have the same function: {', '.join(names)}.")
    fitting = [part.only(_fitting(encoder, part, max_tokens)) for part in sets]
    # If there are too few for both, each side gets its share.
    sides = split_sets(fitting, [len(part) * rank // (n + rank) for part in fitting])
    ranked, asked, left_out = [], [], {}
    for part, (one, two) in zip(fitting, sides, strict=True):
        if min(len(one), len(two)) < LEAST:
            left_out[part.name] = len(part)
            continue
        ranked.append(part.only(one[:rank]))
        asked.append(part.only(two[:n]))
    if not asked:
        raise MechheadsError(
            f"no function has {2 * LEAST} questions that fit {encoder.name} "
            f"({encoder.context} tokens) and are not all about the same thing. Give more questions."
        )
    too_long = sum(map(len, sets)) - sum(map(len, fitting))
    return QuestionSplit(tuple(ranked), tuple(asked), too_long, left_out)


def split_sets(
    sets: Sequence[Questions], sizes: Sequence[int]
) -> list[tuple[list[int], list[int]]]:
    """Split every set into about `sizes` items and the others.

    A group is on the same side in all sets. Small sets choose first.
    """
    first: dict[str, bool] = {}
    for questions, n in sorted(zip(sets, sizes, strict=True), key=lambda pair: len(pair[0])):
        members = Counter(map(group_of, questions.items))
        room = n - sum(size for group, size in members.items() if first.get(group))
        for group, size in members.items():
            if group not in first:
                first[group] = size <= room
                room -= size * first[group]
    sides = [[first[group_of(item)] for item in questions.items] for questions in sets]
    return [
        ([i for i, here in enumerate(side) if here], [i for i, here in enumerate(side) if not here])
        for side in sides
    ]


def group_of(question: Question) -> str:
    """What the question is about."""
    return question.group or question.prompt


def _fitting(encoder: Encoder, questions: Questions, max_tokens: int) -> list[int]:
    return [
        i
        for i, item in enumerate(questions.items)
        if len(encoder.ids(item.prompt)) + max_tokens <= encoder.context
    ]
