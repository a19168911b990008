"""Retrieval: a fact from the context (a cognitive function of arXiv:2512.10978).

Question: Tom is in the park. Anna is in the bank. Max is in the hotel. Where is Anna?
Answer: Anna is in the              -> " bank"; with Max for Anna, " hotel", which is wrong here

Also who has what, and which thing has which color. The corrupted prompt asks about another person
or thing of the context. A group is what is asked about together with the answer.
"""

import random

from mechheads.errors import MechheadsError
from mechheads.prompts import Lexicon, Maker

from .facts import COLORS, ROOMS, THINGS
from .layout import Item, question_maker
from .words import NAMES


def maker(lexicon: Lexicon, *, facts: int = 3, shots: int = 1) -> Maker:
    """Questions about one of `facts` facts."""
    if not 2 <= facts <= 8:
        raise MechheadsError(f"--facts takes 2 to 8 facts, got {facts}.")
    names = lexicon.single(NAMES, "names", at_least=10)
    kinds = (
        (names, ROOMS, "{} is in the", "Where is {}?"),
        (names, THINGS, "{} has the", "What does {} have?"),
        (THINGS, COLORS, "The {} is", "What color is the {}?"),
    )

    def items(rng: random.Random) -> tuple[Item, Item]:
        keys, values, stem, wording = rng.choice(kinds)
        known = dict(zip(rng.sample(keys, facts), rng.sample(values, facts), strict=True))
        context = " ".join(f"{stem.format(key)} {value}." for key, value in known.items())

        def item(key: str) -> Item:
            asked = f"{context} {wording.format(key)}"
            return Item(asked, known[key], f"{key} {known[key]}", stem.format(key))

        one, two = rng.sample(sorted(known), 2)
        return item(one), item(two)

    return question_maker(lexicon, "", items, shots)
