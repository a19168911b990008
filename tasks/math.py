"""Two-operand arithmetic.

"Calculate: 12 + 7 =" -> " 19"; with 4 for the 7 it would be " 16", which is the wrong one here

Addition, subtraction (never below zero) and multiplication of whole numbers in a range. The
corrupted prompt has another operand of as many tokens: the second, the first, or both. Before
the question stand `shots` solved ones, the same in both prompts.
"""

import operator
import random

from mechheads.errors import MechheadsError
from mechheads.prompts import Lexicon, Maker, Pair, one_of

OPERATIONS = {
    "add": ("+", operator.add),
    "subtract": ("-", operator.sub),
    "multiply": ("*", operator.mul),
}
CORRUPTIONS = ("second", "first", "both")


def maker(
    lexicon: Lexicon,
    *,
    corruption: str = "second",
    operations: str = "add,subtract",
    low: int = 0,
    high: int = 30,
    shots: int = 0,
) -> Maker:
    """Questions with operands from low to high; operations is a comma list of them."""
    one_of(corruption, CORRUPTIONS, "corruption")
    chosen = operations.split(",")
    for name in chosen:
        one_of(name, OPERATIONS, "operation")
    if not 0 <= low <= high - 2 or shots < 0:
        raise MechheadsError(
            f"math needs 0 <= --low, --high at least 2 above it, and --shots of 0 or more; got "
            f"{low}, {high} and {shots}."
        )
    numbers = range(low, high + 1)
    size = {x: len(lexicon.split(f" {x}")) for x in numbers}

    def question(rng: random.Random) -> tuple[str, int, int]:
        name, a, b = rng.choice(chosen), rng.choice(numbers), rng.choice(numbers)
        return (name, max(a, b), min(a, b)) if name == "subtract" else (name, a, b)

    def solve(name: str, a: int, b: int) -> tuple[str, int]:
        sign, compute = OPERATIONS[name]
        return f"{a} {sign} {b} =", compute(a, b)

    def make(rng: random.Random) -> Pair:
        solved = [solve(*question(rng)) for _ in range(shots)]
        for _ in range(1000):
            name, a, b = question(rng)
            alike = {x: [y for y in numbers if y != x and size[y] == size[x]] for x in (a, b)}
            if not alike[a] or not alike[b]:
                continue
            other_a = rng.choice(alike[a]) if corruption in ("first", "both") else a
            other_b = rng.choice(alike[b]) if corruption in ("second", "both") else b
            (text, answer), (other, wrong) = solve(name, a, b), solve(name, other_a, other_b)
            if answer != wrong and (name != "subtract" or wrong >= 0):
                break
        else:
            raise MechheadsError(
                f"math finds no operand from {low} to {high} to corrupt with. Raise --high."
            )
        before = "".join(f"Calculate: {q} {r}\n" for q, r in solved) + "Calculate: "
        return Pair(
            clean=before + text,
            corrupt=before + other,
            answers=(f" {answer}",),
            wrong=(f" {wrong}",),
            # a + b and b + a are one group: knowing one is knowing the other.
            group=f"{name} {max(a, b)} {min(a, b)}",
        )

    return make
