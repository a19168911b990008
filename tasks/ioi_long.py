"""Indirect object identification over a long distance (Wang et al. 2022, stretched).

"It was a quiet day. ... This morning, Mary and John met at the store. ... The wind was cold.
Alan was reading a paper. ... In the end, John gave a book to" -> " Mary", not " John"

The literature names this task without defining it. Ours has lead-in sentences, the sentence that
introduces both names, filler sentences, some of which name other people (distractors), and the
giving sentence. Fillers are added until the prompt has `length` tokens (without a BOS token;
occasionally off by one or two). Only names change in the corrupted prompt, as in `ioi`: abc, s2 or
flip. The spans are those of `ioi`: IO, S1, S1+1, S2.
"""

import random

from mechheads.errors import MechheadsError
from mechheads.prompts import Lexicon, Maker, Pair

from .ioi import Corruption, cast, known_names, tell
from .words import OBJECTS, PLACES

INTRODUCTIONS = (
    "This morning, {X} and {Y} met at the {place}.",
    "That day, {X} and {Y} went to the {place} together.",
    "Around noon, {X} and {Y} arrived at the {place}.",
    "As usual, {X} and {Y} had lunch near the {place}.",
)

GIVINGS = (
    "In the end, {S} gave a {object} to",
    "Before leaving, {S} handed a {object} to",
    "At last, {S} decided to give a {object} to",
    "Then {S} took a {object} and gave it to",
)

DISTRACTORS = (
    "Meanwhile, {D} was reading a paper.",
    "Across the street, {D} was looking for a car.",
    "A little later, {D} called and asked about the weather.",
    "Nobody had seen {D} since last week.",
    "By the door, {D} was talking about the news.",
)

FILLERS = (
    "It was a quiet day.",
    "The sun was out and the streets were dry.",
    "A cold wind came from the north.",
    "Someone was playing the piano in the next room.",
    "The bus was late again.",
    "There were not many people around at that time of the year.",
    "A dog was sleeping under the table.",
    "The smell of fresh bread filled the air.",
    "The lights had just been turned on.",
    "Nothing much had changed since the summer.",
    "A long line of cars was waiting at the corner.",
    "The old clock on the wall had stopped at five.",
    "It had rained for most of the night.",
    "The coffee was still hot.",
    "Some of the windows were open, and music came in from outside.",
    "The leaves were turning red and yellow.",
    "A train passed by in the distance.",
    "The floor had been cleaned only an hour before.",
    "Everything seemed to take a little longer than planned.",
    "The trees moved.",
    "It was late.",
    "The water in the river was high.",
    "On the table there were a few plates, two glasses and an empty bottle.",
    "The day passed slowly, as it often does when there is nothing to do.",
)


def fill(
    rng: random.Random, sentences: list[str], room: int, size: dict[str, int]
) -> list[str] | None:
    """Different sentences (repeated only when all are used) of exactly `room` tokens, or None."""
    chosen: list[str] = []
    deck: list[str] = []
    while room > 40:
        deck = deck or rng.sample(sentences, len(sentences))
        chosen.append(deck.pop())
        room -= size[chosen[-1]]
    deck = [s for s in sentences if s not in chosen[-4:]]
    for _ in range(200):
        rng.shuffle(deck)
        rest = room
        for count, sentence in enumerate(deck):
            if rest == 0:
                return chosen + deck[:count]
            rest -= size[sentence]
            if rest < 0:
                break
    return None


def maker(
    lexicon: Lexicon,
    *,
    corruption: Corruption = "abc",
    length: int = 100,
    distractors: int = 2,
    names: str | None = None,
) -> Maker:
    """Prompts of about `length` tokens with `distractors` sentences about other people."""
    if not 60 <= length <= 4000:
        raise MechheadsError(f"--length takes 60 to 4000 tokens, got {length}.")
    if not 0 <= distractors <= len(DISTRACTORS):
        raise MechheadsError(
            f"--distractors takes 0 to {len(DISTRACTORS)} sentences, got {distractors}."
        )
    known = known_names(lexicon, names)
    size = {sentence: len(lexicon.split(f" {sentence}")) for sentence in FILLERS}

    def make(rng: random.Random) -> Pair:
        clean, corrupt, receiver, giver = cast(rng, known, corruption)
        taken = {*clean.values(), *corrupt.values()}
        free = [name for name in known if name not in taken]
        strangers = rng.sample(free, min(distractors, len(free)))
        asides = [
            sentence.format(D=stranger)
            for sentence, stranger in zip(
                rng.sample(DISTRACTORS, len(strangers)), strangers, strict=True
            )
        ]
        setting = {"place": rng.choice(PLACES), "object": rng.choice(OBJECTS)}
        introduction, giving = rng.choice(INTRODUCTIONS), rng.choice(GIVINGS)
        core = " ".join([introduction, *asides, giving]).format(**clean, **setting)
        room = length - len(lexicon.split(f" {core}"))
        if room < 0:
            raise MechheadsError(
                f"--length {length} is too short for {distractors} distractors: they and the "
                f"sentences around them have {length - room} tokens."
            )
        fillers = None
        while fillers is None:
            fillers = fill(rng, list(FILLERS), room, size)
            room -= 1
        lead_in = fillers[: len(fillers) // 4]
        middle = [*fillers[len(fillers) // 4 :], *asides]
        rng.shuffle(middle)
        template = " ".join([*lead_in, introduction, *middle, giving])
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
