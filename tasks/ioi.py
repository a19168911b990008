"""Indirect object identification (Wang et al. 2022, arXiv:2211.00593).

"Then, Mary and John went to the store. John gave a book to" -> " Mary", not " John"

Half of the prompts name the receiver first (ABBA: A and B, B gave), half the giver (BABA).
Corruptions: `abc` uses three unrelated names (no answer is right), `s2` makes a third person the
giver, `flip` makes the receiver the giver, so that the answer becomes the other name. `names`
replaces our list with a comma list: a model of children's stories knows Lily, not Warren.
"""

import random
from typing import Literal

from mechheads.prompts import Lexicon, Maker, Pair

from .words import NAMES, OBJECTS, PLACES

# {X} and {Y} are the two introduced names in order, {S} the giver. Every name follows a space.
TEMPLATES = (
    "Then, {X} and {Y} went to the {place}. {S} gave a {object} to",
    "Then, {X} and {Y} had a lot of fun at the {place}. {S} gave a {object} to",
    "Then, {X} and {Y} were working at the {place}. {S} decided to give a {object} to",
    "Then, {X} and {Y} were thinking about going to the {place}. {S} wanted to give a {object} to",
    "Then, {X} and {Y} had a long talk near the {place}. Afterwards, {S} gave a {object} to",
    "After {X} and {Y} went to the {place}, {S} gave a {object} to",
    "When {X} and {Y} got a {object} at the {place}, {S} decided to give it to",
    "When {X} and {Y} got a {object} at the {place}, {S} decided to give the {object} to",
    "While {X} and {Y} were working at the {place}, {S} gave a {object} to",
    "While {X} and {Y} were commuting to the {place}, {S} gave a {object} to",
    "After lunch, {X} and {Y} went to the {place}. {S} gave a {object} to",
    "Afterwards, {X} and {Y} went to the {place}. {S} gave a {object} to",
    "Today, {X} and {Y} met at the {place}. Before leaving, {S} handed a {object} to",
    "Last week, {X} and {Y} walked to the {place}. There, {S} showed a {object} to",
    "The friends {X} and {Y} found a {object} at the {place}. {S} gave it to",
    "On the way to the {place}, {X} and {Y} stopped for a while. Then {S} passed a {object} to",
    "The {place} was almost empty when {X} and {Y} arrived. {S} offered a {object} to",
)

Corruption = Literal["abc", "s2", "flip"]


def known_names(lexicon: Lexicon, names: str | None) -> list[str]:
    """Single-token names from our list or the user's comma list; raises if there are too few."""
    if names is None:
        return lexicon.single(NAMES, "names", at_least=20)
    own = [name.strip() for name in names.split(",") if name.strip()]
    return lexicon.single(list(dict.fromkeys(own)), "names", at_least=10)


def cast(
    rng: random.Random, names: list[str], corruption: Corruption
) -> tuple[dict, dict, str, str]:
    """Names for the clean and the corrupted prompt, the right answer and the wrong one."""
    receiver, giver, *others = rng.sample(names, 5)
    order = [receiver, giver] if rng.random() < 0.5 else [giver, receiver]
    clean = {"X": order[0], "Y": order[1], "S": giver}
    corrupt = {
        "abc": {"X": others[0], "Y": others[1], "S": others[2]},
        "s2": {**clean, "S": others[2]},
        "flip": {**clean, "S": receiver},
    }[corruption]
    return clean, corrupt, receiver, giver


def maker(
    lexicon: Lexicon,
    *,
    corruption: Corruption = "abc",
    names: str | None = None,
) -> Maker:
    """Prompts over all templates and both orders; corruption is abc, s2 or flip."""
    known = known_names(lexicon, names)

    def make(rng: random.Random) -> Pair:
        template = rng.choice(TEMPLATES)
        setting = {"place": rng.choice(PLACES), "object": rng.choice(OBJECTS)}
        clean, corrupt, receiver, giver = cast(rng, known, corruption)
        return Pair(
            clean=template.format(**clean, **setting),
            corrupt=template.format(**corrupt, **setting),
            answers=(f" {receiver}",),
            wrong=(f" {giver}",),
            group=" and ".join(sorted([receiver, giver])),
        )

    return make
