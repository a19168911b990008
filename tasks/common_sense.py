"""Common sense with lettered options (after CommonsenseQA); the answer is the letter.

Choose the right option.

Question: Which of these is a fruit? A: dog B: peach C: iron D: bus
Answer: B

Question: What do you use to cut paper? A: lamp B: pen C: scissors D: cup
Answer:                             -> " C"; corrupted, with "write a letter": " B", wrong here

The corrupted prompt asks for a different one of the same options. A group is a question with its
options in any order.
"""

import random

from mechheads.errors import MechheadsError
from mechheads.prompts import Lexicon, Maker

from .facts import CATEGORIES, PLACES, USES
from .question_answer import Item, question_maker

LETTERS = "ABCDE"


def maker(lexicon: Lexicon, *, choices: int = 4, shots: int = 1, instruction: bool = True) -> Maker:
    """Questions about categories, uses and places with `choices` options from A on."""
    if not 2 <= choices <= len(LETTERS):
        raise MechheadsError(f"--choices takes 2 to {len(LETTERS)} options, got {choices}.")

    def subjects(rng: random.Random) -> tuple[str, list[tuple[str, str]]]:
        """A wording, and subjects that fit it, with their answers."""
        kind = rng.randrange(3)
        if kind == 0:
            drawn = rng.sample(sorted(CATEGORIES), choices)
            return "Which of these is {}?", [(c, rng.choice(CATEGORIES[c])) for c in drawn]
        wording, table = (
            ("What do you use to {}?", USES),
            ("Where would you find {}?", PLACES),
        )[kind - 1]
        return wording, [(s, table[s]) for s in rng.sample(sorted(table), choices)]

    def items(rng: random.Random) -> tuple[Item, Item]:
        wording, drawn = subjects(rng)
        (one, answer), (two, other) = drawn[:2]
        options = [option for _, option in drawn]
        rng.shuffle(options)
        listed = " ".join(f"{a}: {o}" for a, o in zip(LETTERS, options, strict=False))

        def item(subject: str, right: str) -> Item:
            letter, group = LETTERS[options.index(right)], f"{subject}: {sorted(options)}"
            return Item(f"{wording.format(subject)} {listed}", letter, group)

        return item(one, answer), item(two, other)

    return question_maker(lexicon, "Choose the right option." if instruction else "", items, shots)
