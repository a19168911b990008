"""Syntax: past tense, plural, question formation, negation, agreement (after BIG-Bench).

Write the verb in the past tense.

Question: play
Answer: played

Question: walk
Answer:                             -> " walked"; corrupted, with "jump": " jumped", wrong here

The other kinds: "cat" -> " cats"; "The dog will swim." -> " Will the dog swim?" or " The dog will
not swim."; "The key near the cabinets" -> " is". The corrupted prompt has a different verb or noun
of the same kind, or, for agreement, the other number of the subject. A group is a word after the
example's word for the first two kinds, whose forms must be memorised, else a combination.

Spans: WORD for the first two kinds; SUBJECT, MODAL and VERB for sentences; SUBJECT, LINK and
DISTRACTOR (key, near the, cabinets) for agreement.
"""

import random
from collections.abc import Callable
from typing import Literal

from mechheads.prompts import Lexicon, Maker, Pair, fill

from .facts import ACTORS, DEEDS, LINKS, MODALS, PAST, PLURAL
from .question_answer import Item, question_maker

Twins = tuple[Item, Item]


def forms(kind: str, table: dict[str, str]) -> Callable[[random.Random], Twins]:
    """A word and its form; the twin is a different word."""

    def item(word: str) -> Item:
        text, spans = fill("{WORD}", {"WORD": word})
        return Item(text, table[word], f"{kind} {word}", spans=spans)

    def items(rng: random.Random) -> Twins:
        one, two = (item(word) for word in rng.sample(sorted(table), 2))
        return one, two

    return items


def sentences(kind: str) -> Callable[[random.Random], Twins]:
    """A modal sentence and its question or negation; the twin has a different subject."""

    def item(subject: str, modal: str, deed: str) -> Item:
        asked = f"{modal.capitalize()} the {subject} {deed}?"
        answer = asked if kind == "question" else f"The {subject} {modal} not {deed}."
        values = {"SUBJECT": subject, "MODAL": modal, "VERB": deed}
        text, spans = fill("The {SUBJECT} {MODAL} {VERB}.", values)
        return Item(text, answer, f"{kind} {subject} {modal} {deed}", spans=spans)

    def items(rng: random.Random) -> Twins:
        one, two = rng.sample(ACTORS, 2)
        modal, deed = rng.choice(MODALS), rng.choice(DEEDS)
        return item(one, modal, deed), item(two, modal, deed)

    return items


def agreement(rng: random.Random) -> Twins:
    """A subject, a distractor of either number, and the verb that agrees with the subject."""
    subject, other = rng.sample(sorted(PLURAL), 2)
    link, distractor = rng.choice(LINKS), rng.choice([other, PLURAL[other]])

    def item(noun: str, verb: str) -> Item:
        values = {"SUBJECT": noun, "LINK": link, "DISTRACTOR": distractor}
        text, spans = fill("The {SUBJECT} {LINK} {DISTRACTOR}", values)
        return Item(text, verb, f"agreement {noun} {distractor}", spans=spans, telling=())

    twins = [item(subject, "is"), item(PLURAL[subject], "are")]
    rng.shuffle(twins)
    return twins[0], twins[1]


KINDS: dict[str, tuple[str, Callable[[random.Random], Twins]]] = {
    "past": ("Write the verb in the past tense.", forms("past", PAST)),
    "plural": ("Write the noun in the plural.", forms("plural", PLURAL)),
    "question": ("Turn the sentence into a question.", sentences("question")),
    "negation": ("Negate the sentence.", sentences("negation")),
    "agreement": ("Complete the sentence with is or are.", agreement),
}


Kind = Literal["all", "past", "plural", "question", "negation", "agreement"]


def maker(
    lexicon: Lexicon, *, kind: Kind = "all", shots: int = 1, instruction: bool = True
) -> Maker:
    """Prompts of one kind (past, plural, question, negation, agreement) or of all in turn.

    Without the instruction line, only the solved examples show what is asked.
    """
    chosen = list(KINDS) if kind == "all" else [kind]
    makers = [
        question_maker(
            lexicon,
            KINDS[name][0] if instruction else "",
            KINDS[name][1],
            shots,
            memorised=name in ("past", "plural"),
        )
        for name in chosen
    ]

    def make(rng: random.Random) -> Pair:
        return rng.choice(makers)(rng)

    return make
