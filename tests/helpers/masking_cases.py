"""Questions for tests of masking, and what they are about."""

from collections.abc import Iterable

from mechheads.prompts import Question, Questions


def groups(sets: Iterable[Questions]) -> set[str]:
    """What the questions are about."""
    return {item.group for part in sets for item in part.items}


def names_questions(name: str) -> Questions:
    """Four that a tiny model can read; Mary is the answer to all."""
    items = tuple(
        Question(f"Then {a} gave", ("Mary",), name) for a in ("Tom", "Anna", "James", "John")
    )
    return Questions(name, items)
