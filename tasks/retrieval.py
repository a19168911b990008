"""Retrieval: a fact from the context (a cognitive function of arXiv:2512.10978).

Question: Tom Brown, Anna Hill and Max Stone are here. What is the last name of Anna?
Answer: Anna            -> " Hill"; the corrupted prompt has Anna Stone and Max Hill: " Stone"

Also the name after a title, and the thing of a color. A fact is two adjacent words: with words that
all facts share between the two, small models take the last fact, whatever is asked. Two facts swap
their values in the corrupted prompt. A group is what is asked about together with the answer.

Spans: KEY and ANSWER (Anna and Hill in the context), OTHER_KEY and OTHER (Max and Stone, the fact
that swaps its value), ASKED (Anna in the question).
"""

import random

from mechheads.errors import MechheadsError
from mechheads.prompts import Lexicon, Maker, fill

from .facts import COLORS, SURNAMES, THINGS, TITLES
from .question_answer import Item, question_maker
from .words import NAMES


def maker(lexicon: Lexicon, *, facts: int = 3, shots: int = 1) -> Maker:
    """Questions about one of `facts` facts."""
    if not 2 <= facts <= 8:
        raise MechheadsError(f"--facts takes 2 to 8 facts, got {facts}.")
    names = lexicon.single(NAMES, "names", at_least=10)
    kinds = (
        (names, SURNAMES, "{} {}", "{} are here.", "What is the last name of {}?", "{}"),
        (TITLES, SURNAMES, "{} {}", "{} are here.", "What is the name of the {}?", "{}"),
        (COLORS, THINGS, "the {} {}", "Here are {}.", "Which thing is {}?", "The {}"),
    )

    def items(rng: random.Random) -> tuple[Item, Item]:
        keys, values, form, frame, wording, stem = rng.choice(kinds)
        drawn = zip(rng.sample(keys, facts), rng.sample(values, facts), strict=True)
        known: dict[str, str] = dict(drawn)
        one, two = rng.sample(sorted(known), 2)

        def item(known: dict[str, str]) -> Item:
            *others, last = (form.format(f"{{{key}}}", f"{{{key}_value}}") for key in known)
            context = frame.format(f"{', '.join(others)} and {last}")
            template = f"{context} {wording.format('{asked}')}"
            values = {key: key for key in known} | {f"{key}_value": known[key] for key in known}
            values["asked"] = one.lower() if one in TITLES else one
            marked = {one: "KEY", f"{one}_value": "ANSWER", two: "OTHER_KEY"}
            marked |= {f"{two}_value": "OTHER", "asked": "ASKED"}
            text, spans = fill(template, values, marked)
            return Item(text, known[one], f"{one} {known[one]}", stem.format(one), spans)

        return item(known), item(known | {one: known[two], two: known[one]})

    return question_maker(lexicon, "", items, shots)
