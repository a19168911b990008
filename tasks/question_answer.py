"""The question-and-answer layout that the question tasks share.

An instruction line, solved examples, and the question to answer. The clean and corrupted prompts
differ only in the last question, which alone has spans.
"""

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mechheads.errors import MechheadsError
from mechheads.prompts import Lexicon, Maker, Pair, Span, held_out


@dataclass(frozen=True)
class Item:
    """A question, its answer (without a leading space), and what it is about.

    The stem starts the answer's sentence: "Anna is in the", where the answer is "bank". `spans` are
    those of the question. `telling` are words that would tell the answer if a solved example had
    them: the answer itself, unless all questions have the same few answers.
    """

    question: str
    answer: str
    group: str
    stem: str = ""
    spans: tuple[Span, ...] = ()
    telling: tuple[str, ...] | None = None

    def told_by(self, example: "Item") -> bool:
        """Whether a solved example is this question, or tells its answer."""
        telling = (self.answer,) if self.telling is None else self.telling
        shown = f"{example.question} {example.stem} {example.answer}"
        words = "|".join(map(re.escape, telling))
        found = words and re.search(rf"\b({words})(?!\w)", shown, re.IGNORECASE)
        return example.question == self.question or bool(found)

    @property
    def begin(self) -> str:
        """The text between the last line break and the answer."""
        return f"Answer: {self.stem}" if self.stem else "Answer:"


def ask(instruction: str, examples: Sequence[Item], item: Item) -> str:
    """The prompt: everything before the answer."""
    lines = [f"{instruction}\n"] if instruction else []
    lines += [f"Question: {e.question}\n{e.begin} {e.answer}\n" for e in examples]
    return "\n".join([*lines, f"Question: {item.question}\n{item.begin}"])


def question_maker(
    lexicon: Lexicon,
    instruction: str,
    items: Callable[[random.Random], tuple[Item, Item]],
    shots: int,
    memorised: bool = False,
) -> Maker:
    """Pairs from `items`, which returns a question and its corrupted twin; their answers differ.

    Twins with different numbers of tokens are redrawn. An example is neither of the two questions,
    tells neither answer, and never comes from the test split, so
    that no training prompt contains a solved held-out question. If answers can only be memorised,
    every question is needed in training: then a group is a question after its example.
    """
    if not 0 <= shots <= 1000:
        raise MechheadsError(f"--shots takes 0 to 1000 solved examples, got {shots}.")

    def alike(one: Item, two: Item) -> bool:
        # Answers of different lengths could be distinguished by length alone.
        return all(
            len(lexicon.split(f" {a}")) == len(lexicon.split(f" {b}"))
            for a, b in (
                (one.question, two.question),
                (one.stem, two.stem),
                (one.answer, two.answer),
            )
        )

    nothing = MechheadsError(
        f"no two questions align for the tokenizer of {lexicon.name}. Use a model with a larger "
        "vocabulary."
    )

    def example(rng: random.Random, asked: tuple[Item, Item]) -> Item:
        for _ in range(1000):
            item, _ = items(rng)
            told = any(one.told_by(item) for one in asked)
            if (memorised or not held_out(item.group)) and not told:
                return item
        raise nothing

    def make(rng: random.Random) -> Pair:
        for _ in range(1000):
            clean, corrupt = items(rng)
            if clean.answer != corrupt.answer and alike(clean, corrupt):
                break
        else:
            raise nothing
        examples = [example(rng, (clean, corrupt)) for _ in range(shots)]
        text = ask(instruction, examples, clean)
        begin = len(text) - len(f"{clean.question}\n{clean.begin}")
        return Pair(
            clean=text,
            corrupt=ask(instruction, examples, corrupt),
            answers=(f" {clean.answer}",),
            wrong=(f" {corrupt.answer}",),
            group=" after ".join([clean.group, *(e.group for e in examples if memorised)]),
            subject=clean.group,
            spans=tuple(span.moved(begin) for span in clean.spans),
        )

    return make
