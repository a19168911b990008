"""Math calculation: one-step word problems (a cognitive function of arXiv:2512.10978).

Question: Tom has 5 apples and buys 3 more. How many apples does Tom have now?
Answer:                             -> " 8"; corrupted, with 4 instead of 3: " 9", wrong here

Addition, subtraction and multiplication. The corrupted prompt has a different second number. A
group is the operation with its two numbers, as in the task `math`; for a product, which can only be
memorised, it includes the things that are counted. Spans: OP1 and OP2 (the numbers), THINGS (what
is counted, both times).
"""

import random

from mechheads.errors import MechheadsError
from mechheads.prompts import Lexicon, Maker, fill

from .facts import COUNTED
from .question_answer import Item, question_maker
from .words import NAMES

MARKED = {"a": "OP1", "b": "OP2", "things": "THINGS"}
ADDITION = (
    "{name} has {a} {things} and buys {b} more. How many {things} does {name} have now?",
    "There are {a} {things} on the table. {name} adds {b} more. How many {things} are there now?",
)
SUBTRACTION = (
    "{name} has {a} {things} and gives away {b}. How many {things} does {name} have now?",
    "There are {a} {things} on the table. {name} takes {b} of them. How many {things} are left?",
)
MULTIPLICATION = (
    "{name} has {a} boxes with {b} {things} each. How many {things} does {name} have?",
    "There are {a} bags and {b} {things} in each bag. How many {things} are there?",
)


def maker(lexicon: Lexicon, *, high: int = 20, factor: int = 9, shots: int = 1) -> Maker:
    """Problems with numbers from 1 to `high`, or from 2 to `factor` in products."""
    if high < 4 or factor < 3:
        raise MechheadsError(
            f"--high takes 4 or more and --factor 3 or more, got {high} and {factor}."
        )
    names = lexicon.single(NAMES, "names", at_least=10)

    def numbers(rng: random.Random, kind: int) -> tuple[int, list[int]]:
        """The first number and two candidates for the second."""
        if kind == 2:
            return rng.randint(2, factor), rng.sample(range(2, factor + 1), 2)
        a = rng.randint(1 if kind == 0 else 3, high)
        return a, rng.sample(range(1, high + 1 if kind == 0 else a + 1), 2)

    def items(rng: random.Random) -> tuple[Item, Item]:
        kind = rng.randrange(3)
        template = rng.choice((ADDITION, SUBTRACTION, MULTIPLICATION)[kind])
        words = {"name": rng.choice(names), "things": rng.choice(COUNTED)}
        a, seconds = numbers(rng, kind)

        def item(b: int) -> Item:
            result = (a + b, a - b, a * b)[kind]
            group = f"{('add', 'subtract', 'multiply')[kind]} {max(a, b)} {min(a, b)}"
            if kind == 2:
                group += f" {words['things']}"
            question, spans = fill(template, {"a": a, "b": b, **words}, MARKED)
            return Item(question, str(result), group, spans=spans)

        return item(seconds[0]), item(seconds[1])

    return question_maker(lexicon, "", items, shots)
