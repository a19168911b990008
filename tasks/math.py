"""Two-operand arithmetic.

"Calculate: 12 + 7 =" -> " 19"; corrupted, with 4 instead of 7: " 16", wrong here

Addition, subtraction (never below zero) and multiplication of whole numbers in a range. The
corrupted prompt changes the second operand, the first, or both, to numbers with as many tokens, and
its answer has as many tokens as the right one. `shots` solved questions come first, the same in
both prompts. Spans, of the last question: OP1 (12), OPERATOR (+), OP2 (7).
"""

import operator
import random
from typing import Any, Literal

from mechheads.errors import MechheadsError, unknown
from mechheads.prompts import Lexicon, Maker, Pair, fill

QUESTION = "{OP1} {OPERATOR} {OP2} ="
OPERATIONS = {
    "add": ("+", operator.add),
    "subtract": ("-", operator.sub),
    "multiply": ("*", operator.mul),
}


def maker(
    lexicon: Lexicon,
    *,
    corruption: Literal["second", "first", "both"] = "second",
    operations: str = "add,subtract",
    low: int = 0,
    high: int = 30,
    shots: int = 0,
) -> Maker:
    """Questions with operands from low to high; operations is a comma list of them."""
    chosen = [name.strip() for name in operations.split(",")]
    for name in chosen:
        if name not in OPERATIONS:
            raise unknown("operation", name, OPERATIONS)
    if not 0 <= low <= high - 2 or high > 9999 or not 0 <= shots <= 1000:
        raise MechheadsError(
            "math needs --low of 0 or more, --high at least 2 above it and at most 9999, and "
            f"--shots of 0 to 1000; got {low}, {high} and {shots}."
        )
    numbers = range(low, high + 1)
    size = {x: len(lexicon.split(f" {x}")) for x in numbers}

    def question(rng: random.Random) -> tuple[str, int, int]:
        name, a, b = rng.choice(chosen), rng.choice(numbers), rng.choice(numbers)
        return (name, max(a, b), min(a, b)) if name == "subtract" else (name, a, b)

    def solve(name: str, a: int, b: int) -> tuple[dict[str, Any], int]:
        sign, compute = OPERATIONS[name]
        return {"OP1": a, "OPERATOR": sign, "OP2": b}, compute(a, b)

    def example(rng: random.Random, told: set[int]) -> tuple[dict[str, Any], int]:
        """A solved sum with another result, so that it tells no answer."""
        for _ in range(1000):
            solved = solve(*question(rng))
            if solved[1] not in told:
                return solved
        raise MechheadsError("math finds no solved example with another result. Raise --high.")

    def make(rng: random.Random) -> Pair:
        for _ in range(1000):
            name, a, b = question(rng)
            alike = {x: [y for y in numbers if y != x and size[y] == size[x]] for x in (a, b)}
            if not alike[a] or not alike[b]:
                continue
            other_a = rng.choice(alike[a]) if corruption in ("first", "both") else a
            other_b = rng.choice(alike[b]) if corruption in ("second", "both") else b
            (asked, answer), (other, wrong) = solve(name, a, b), solve(name, other_a, other_b)
            # Answers of different lengths could be distinguished by length alone.
            sizes = {len(lexicon.split(f" {x}")) for x in (answer, wrong)}
            if answer != wrong and len(sizes) == 1 and (name != "subtract" or wrong >= 0):
                break
        else:
            raise MechheadsError(
                f"math finds no operand from {low} to {high} for a corruption. Raise --high."
            )
        solved = [example(rng, {answer, wrong}) for _ in range(shots)]
        shown = [f"Calculate: {QUESTION.format(**q)} {r}\n" for q, r in solved]
        before = "".join(shown) + "Calculate: "
        text, spans = fill(QUESTION, asked)
        return Pair(
            clean=before + text,
            corrupt=before + QUESTION.format(**other),
            answers=(f" {answer}",),
            wrong=(f" {wrong}",),
            # a + b and b + a are one group: knowing one is knowing the other.
            group=f"{name} {max(a, b)} {min(a, b)}",
            spans=tuple(span.moved(len(before)) for span in spans),
        )

    return make
