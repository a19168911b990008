"""Indirect object identification (Wang et al. 2022, arXiv:2211.00593).

"Then, Mary and John went to the store. John gave a book to" -> " Mary", not " John"

Half of the prompts name the receiver first (ABBA: A and B, B gave), half the giver (BABA).
Corruptions: `abc` uses three unrelated names (no answer is right), `s2` makes a third person the
giver, `flip` makes the receiver the giver, so that the answer becomes the other name. `names`
replaces our list with a comma list: a model of children's stories knows Tim, not Warren.

`templates` is `ours`, 17 of them, or `wang`, the paper's 15 (its appendix E) with its places and
objects. Ten of ours are the paper's, word for word. Ours leave out its four templates without a
place or a verb of giving, and have seven more sentences.

Spans: IO (the receiver), S1 (the giver), S1+1 (the word after S1), S2 (the giver again).
"""

import random
import re
from collections.abc import Mapping
from typing import Any, Literal

from mechheads.errors import MechheadsError
from mechheads.prompts import Lexicon, Maker, Pair, Span, fill

from .words import NAMES, OBJECTS, PLACES

# {X} and {Y} are the two introduced names in order, {S} the giver. Every name follows a space.
WANG = (
    "Then, {X} and {Y} went to the {place}. {S} gave a {object} to",
    "Then, {X} and {Y} had a lot of fun at the {place}. {S} gave a {object} to",
    "Then, {X} and {Y} were working at the {place}. {S} decided to give a {object} to",
    "Then, {X} and {Y} were thinking about going to the {place}. {S} wanted to give a {object} to",
    "Then, {X} and {Y} had a long argument, and afterwards {S} said to",
    "After {X} and {Y} went to the {place}, {S} gave a {object} to",
    "When {X} and {Y} got a {object} at the {place}, {S} decided to give it to",
    "When {X} and {Y} got a {object} at the {place}, {S} decided to give the {object} to",
    "While {X} and {Y} were working at the {place}, {S} gave a {object} to",
    "While {X} and {Y} were commuting to the {place}, {S} gave a {object} to",
    "After the lunch, {X} and {Y} went to the {place}. {S} gave a {object} to",
    "Afterwards, {X} and {Y} went to the {place}. {S} gave a {object} to",
    "Then, {X} and {Y} had a long argument. Afterwards {S} said to",
    "The {place} {X} and {Y} went to had a {object}. {S} gave it to",
    "Friends {X} and {Y} found a {object} at the {place}. {S} gave it to",
)
TEMPLATES = (
    *WANG[:4],
    "Then, {X} and {Y} had a long talk near the {place}. Afterwards, {S} gave a {object} to",
    *WANG[5:10],
    "After lunch, {X} and {Y} went to the {place}. {S} gave a {object} to",
    WANG[11],
    "Today, {X} and {Y} met at the {place}. Before leaving, {S} handed a {object} to",
    "Last week, {X} and {Y} walked to the {place}. There, {S} showed a {object} to",
    "The friends {X} and {Y} found a {object} at the {place}. {S} gave it to",
    "On the way to the {place}, {X} and {Y} stopped for a while. Then {S} passed a {object} to",
    "The {place} was almost empty when {X} and {Y} arrived. {S} offered a {object} to",
)
WANG_PLACES = "store garden restaurant school hospital office house station".split()
WANG_OBJECTS = "ring kiss bone basketball computer necklace drink snack".split()

Corruption = Literal["abc", "s2", "flip"]
Templates = Literal["ours", "wang"]
# Templates, places and objects.
SETTINGS = {"ours": (TEMPLATES, PLACES, OBJECTS), "wang": (WANG, WANG_PLACES, WANG_OBJECTS)}
LEAST = 10  # names of the user's


def known_names(lexicon: Lexicon, names: str | None) -> list[str]:
    """Single-token names from our list or the user's comma list; raises if there are too few."""
    if names is None:
        return lexicon.single(NAMES, "names", at_least=20)
    own, unusable = _listed(names), names_left_out(lexicon, names)
    left = len(own) - len(unusable)
    if left < LEAST <= len(own):
        raise MechheadsError(
            f"{_not_single(lexicon, unusable)}; {left} of the {LEAST} names that the task needs "
            "are left. Add names, or use a model with a larger vocabulary."
        )
    return lexicon.single(own, "names", at_least=LEAST)


def names_left_out(lexicon: Lexicon, names: str) -> list[str]:
    """Those of the user's names that are not single tokens, so that no prompt has them."""
    return [name for name in _listed(names) if len(lexicon.split(f" {name}")) != 1]


def left_out_notice(lexicon: Lexicon, options: Mapping[str, Any]) -> str:
    """A notice of the user's names that are not used, or an empty text."""
    unusable = names_left_out(lexicon, options.get("names") or "")
    them = "it" if len(unusable) == 1 else "them"
    return f"{_not_single(lexicon, unusable)}: no prompt has {them}." if unusable else ""


def _listed(names: str) -> list[str]:
    return list(dict.fromkeys(name.strip() for name in names.split(",") if name.strip()))


def _not_single(lexicon: Lexicon, unusable: list[str]) -> str:
    are = "is not a single token" if len(unusable) == 1 else "are not single tokens"
    return f"--names: {', '.join(unusable)} {are} of {lexicon.name}"


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


def tell(
    template: str, people: Mapping[str, str], setting: Mapping[str, str], receiver: str
) -> tuple[str, tuple[Span, ...]]:
    """The clean prompt, and its spans in the paper's order, whichever name comes first."""
    one, two = ("X", "Y") if people["X"] == receiver else ("Y", "X")
    names = {one: "IO", two: "S1", "S": "S2"}
    text, (io, s1, s2) = fill(template, {**people, **setting}, names)
    after = re.compile(r"\w+").search(text, s1.end)
    assert after is not None
    return text, (io, s1, Span("S1+1", *after.span()), s2)


def maker(
    lexicon: Lexicon,
    *,
    corruption: Corruption = "abc",
    names: str | None = None,
    templates: Templates = "ours",
) -> Maker:
    """Prompts over all templates and both orders; corruption is abc, s2 or flip."""
    known = known_names(lexicon, names)
    sentences, places, objects = SETTINGS[templates]

    def make(rng: random.Random) -> Pair:
        template = rng.choice(sentences)
        setting = {"place": rng.choice(places), "object": rng.choice(objects)}
        clean, corrupt, receiver, giver = cast(rng, known, corruption)
        text, spans = tell(template, clean, setting, receiver)
        return Pair(
            clean=text,
            corrupt=template.format(**corrupt, **setting),
            answers=(f" {receiver}",),
            wrong=(f" {giver}",),
            group=" and ".join(sorted([receiver, giver])),
            spans=spans,
        )

    return make
