"""Inference: deduction and transitive comparison (a cognitive function of arXiv:2512.10978).

Question: Anna is taller than Tom. Tom is taller than Max. Who is the tallest?
Answer: The tallest is              -> " Anna"; corrupted, with "shortest": " Max", wrong here

Question: Rex is a dog. Every cat is gray. Every dog is white. What color is Rex?
Answer: Rex is                      -> " white"; corrupted, with "Rex is a cat": " gray", wrong here

The corrupted prompt asks for the other end, or makes the individual one of the other kind. A group
is the two people at the ends, or the kind with its color.
"""

import random
from typing import Literal

from mechheads.prompts import Lexicon, Maker

from .facts import CATEGORIES, COLORS, COMPARISONS
from .question_answer import Item, question_maker
from .words import NAMES

Kind = Literal["all", "comparison", "deduction"]


def maker(lexicon: Lexicon, *, kind: Kind = "all", shots: int = 1) -> Maker:
    """Questions of one kind (comparison, deduction) or of both."""
    names = lexicon.single(NAMES, "names", at_least=10)
    animals = CATEGORIES["an animal"]

    def comparison(rng: random.Random) -> tuple[Item, Item]:
        first, middle, last = rng.sample(names, 3)
        more, less, most, least = rng.choice(COMPARISONS)
        statements = rng.choice(
            (
                [f"{first} is {more} than {middle}.", f"{middle} is {more} than {last}."],
                [f"{middle} is {less} than {first}.", f"{last} is {less} than {middle}."],
            )
        )
        rng.shuffle(statements)
        context, group = " ".join(statements), " ".join(sorted((first, last)))
        twins = [
            Item(f"{context} Who is the {asked}?", answer, group, f"The {asked} is")
            for asked, answer in ((most, first), (least, last))
        ]
        rng.shuffle(twins)
        return twins[0], twins[1]

    def deduction(rng: random.Random) -> tuple[Item, Item]:
        kinds, colors, name = rng.sample(animals, 2), rng.sample(COLORS, 2), rng.choice(names)
        rules = " ".join(f"Every {k} is {c}." for k, c in zip(kinds, colors, strict=True))
        twins = [
            Item(f"{name} is a {k}. {rules} What color is {name}?", c, f"{k} {c}", f"{name} is")
            for k, c in zip(kinds, colors, strict=True)
        ]
        rng.shuffle(twins)
        return twins[0], twins[1]

    chosen = {"comparison": [comparison], "deduction": [deduction]}.get(
        kind, [comparison, deduction]
    )
    return question_maker(lexicon, "", lambda rng: rng.choice(chosen)(rng), shots)
