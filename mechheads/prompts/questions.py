"""Questions with free-form answers."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from .pairs import Prompts
from .splits import split_groups


@dataclass(frozen=True)
class Question:
    """A prompt for a free-form answer, and the right answers.

    `function` is the cognitive function that it exercises; `group` names what it is about, so that
    a group is never on both sides of a split.
    """

    prompt: str
    answers: tuple[str, ...]
    function: str
    group: str = ""


@dataclass(frozen=True)
class Questions:
    """The questions of one task or function, with the pairs they come from, if any."""

    name: str
    items: tuple[Question, ...]
    prompts: Prompts | None = None

    def __len__(self) -> int:
        """Number of questions."""
        return len(self.items)

    def split_at(self, n: int) -> "tuple[Questions, Questions]":
        """Split into n questions and the others; no group is on both sides."""
        one, two = split_groups([item.group or item.prompt for item in self.items], n)
        return self.only(one), self.only(two)

    def only(self, chosen: Sequence[int]) -> "Questions":
        """The chosen questions, with their pairs."""
        pairs = self.prompts and tuple(self.prompts.pairs[i] for i in chosen)
        return Questions(
            self.name,
            tuple(self.items[i] for i in chosen),
            replace(self.prompts, pairs=pairs) if self.prompts else None,
        )

    def digest(self) -> str:
        """SHA-256 of the text of all questions, for provenance."""
        rows = [[q.prompt, q.answers, q.function] for q in self.items]
        return hashlib.sha256(json.dumps(rows).encode()).hexdigest()
