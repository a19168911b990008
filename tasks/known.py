"""Prompts for the models whose heads are known; each task has the name of its model.

known/induction, known/saturated: "e a b f c d g a" -> " b"; in the corrupted prompt a and c have
    changed places, so that d is right
known/redundant: the same, but the first a is another letter, so that nothing is right
known/constant: "a c d b ?" -> " a"; the corrupted prompt begins with another letter
known/ioi: "When Mary and John were at the shop , John gave a book to" -> " Mary"; in the corrupted
    prompt Mary gives
"""

import random
from typing import Literal

from mechheads.prompts import Lexicon, Maker, Pair, Task

PREFIX = "known/"
LETTERS = tuple("abcdefghijkl")
NAMES = tuple("Mary John Tom Anna Paul Lucy Mark Jane Peter Sarah David Emma".split())
PLACES = tuple("shop park school garden house market".split())
THINGS = tuple("book ball drink cake ring pen".split())


def induction(lexicon: Lexicon) -> Maker:
    """Prompts that end with a letter that came before; a second letter takes its place."""
    return _repeated(lexicon, "exchanged")


def redundant(lexicon: Lexicon) -> Maker:
    """Prompts that end with a letter that came before; a new letter takes its place."""
    return _repeated(lexicon, "replaced")


def _repeated(lexicon: Lexicon, corruption: Literal["exchanged", "replaced"]) -> Maker:
    letters = lexicon.single(LETTERS, "letters", at_least=8)

    def make(rng: random.Random) -> Pair:
        first, other, right, wrong, new, *rest = rng.sample(letters, 8)
        order = rng.sample(range(5), 5)

        def prompt(one: str, two: str) -> str:
            parts = [f"{one} {right}", f"{two} {wrong}", *rest]
            return " ".join([*(parts[i] for i in order), first])

        corrupt = prompt(other, first) if corruption == "exchanged" else prompt(new, other)
        return _pair(prompt(first, other), corrupt, right, wrong)

    return make


def constant(lexicon: Lexicon) -> Maker:
    """Prompts whose first letter is asked for."""
    letters = lexicon.single(LETTERS, "letters", at_least=8)

    def make(rng: random.Random) -> Pair:
        right, wrong, *rest = rng.sample(letters, 5)
        clean, corrupt = (" ".join([first, *rest, "?"]) for first in (right, wrong))
        return _pair(clean, corrupt, right, wrong)

    return make


def ioi(lexicon: Lexicon) -> Maker:
    """Prompts of a single template, in which either name comes first."""
    names = lexicon.single(NAMES, "names", at_least=8)

    def make(rng: random.Random) -> Pair:
        receiver, giver = rng.sample(names, 2)
        both = " and ".join(rng.sample([receiver, giver], 2))
        place, thing = rng.choice(PLACES), rng.choice(THINGS)
        clean, corrupt = (
            f"When {both} were at the {place} , {one} gave a {thing} to"
            for one in (giver, receiver)
        )
        return _pair(clean, corrupt, receiver, giver)

    return make


def _pair(clean: str, corrupt: str, right: str, wrong: str) -> Pair:
    return Pair(clean, corrupt, (f" {right}",), (f" {wrong}",), f"{right} and {wrong}")


MAKERS = {
    "induction": induction,
    "ioi": ioi,
    "saturated": induction,
    "constant": constant,
    "redundant": redundant,
}
KNOWN = {
    f"{PREFIX}{name}": Task(f"{PREFIX}{name}", of, "logit_diff") for name, of in MAKERS.items()
}
