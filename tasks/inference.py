"""Inference: deduction and transitive comparison (a cognitive function of arXiv:2512.10978).

Question: Anna is taller than Tom. Tom is taller than Max. Who is the tallest?
Answer: The tallest is              -> " Anna"; corrupted, with "shortest": " Max", wrong here

Question: Rex is a dog. Every cat is gray. Every dog is white. What color is Rex?
Answer: Rex is                      -> " white"; corrupted, with "Rex is a cat": " gray", wrong here

The corrupted prompt asks for the other end, or makes the individual one of the other kind. A group
is the two people at the ends, or the kind with its color.

Spans of both: ANSWER (Anna; white), OTHER (the corrupted prompt's answer: Max; gray) and ASKED
(tallest; Rex, in the question). Of comparisons also MIDDLE (Tom, both times), of deductions KIND
(dog, of Rex), RULE and OTHER_RULE (dog and cat after "Every").
"""

import random
from typing import Literal

from mechheads.prompts import Lexicon, Maker, fill

from .facts import CATEGORIES, COLORS, COMPARISONS
from .question_answer import Item, question_maker
from .words import NAMES

Kind = Literal["all", "comparison", "deduction"]
COMPARED = "Who is the {asked}?"
DEDUCTION = (
    "{name} is a {kind}. Every {kind0} is {color0}. Every {kind1} is {color1}. "
    "What color is {asked}?"
)


def maker(lexicon: Lexicon, *, kind: Kind = "all", shots: int = 1) -> Maker:
    """Questions of one kind (comparison, deduction) or of both."""
    names = lexicon.single(NAMES, "names", at_least=10)
    animals = CATEGORIES["an animal"]

    def comparison(rng: random.Random) -> tuple[Item, Item]:
        first, middle, last = rng.sample(names, 3)
        more, less, most, least = rng.choice(COMPARISONS)
        statements = rng.choice(
            (
                ["{first} is {more} than {middle}.", "{middle} is {more} than {last}."],
                ["{middle} is {less} than {first}.", "{last} is {less} than {middle}."],
            )
        )
        rng.shuffle(statements)
        template, group = " ".join([*statements, COMPARED]), " ".join(sorted((first, last)))
        known = {"first": first, "middle": middle, "last": last, "more": more, "less": less}

        def item(asked: str, end: str, other: str) -> Item:
            marked = {end: "ANSWER", "middle": "MIDDLE", other: "OTHER", "asked": "ASKED"}
            text, spans = fill(template, {**known, "asked": asked}, marked)
            return Item(text, known[end], group, f"The {asked} is", spans)

        twins = [item(most, "first", "last"), item(least, "last", "first")]
        rng.shuffle(twins)
        return twins[0], twins[1]

    def deduction(rng: random.Random) -> tuple[Item, Item]:
        kinds, colors, name = rng.sample(animals, 2), rng.sample(COLORS, 2), rng.choice(names)

        def item(own: int) -> Item:
            kind, color, other = kinds[own], colors[own], 1 - own
            values = {"name": name, "kind": kind, "asked": name}
            for i in (0, 1):
                values |= {f"kind{i}": kinds[i], f"color{i}": colors[i]}
            marked = {"kind": "KIND", f"kind{own}": "RULE", f"color{own}": "ANSWER"}
            marked |= {f"kind{other}": "OTHER_RULE", f"color{other}": "OTHER", "asked": "ASKED"}
            text, spans = fill(DEDUCTION, values, marked)
            return Item(text, color, f"{kind} {color}", f"{name} is", spans)

        twins = [item(0), item(1)]
        rng.shuffle(twins)
        return twins[0], twins[1]

    chosen = {"comparison": [comparison], "deduction": [deduction]}.get(
        kind, [comparison, deduction]
    )
    return question_maker(lexicon, "", lambda rng: rng.choice(chosen)(rng), shots)
