"""What the embedded model is trained on: each task's share of a step, and all words."""

import random
from collections.abc import Iterator
from dataclasses import replace

from mechheads.prompts import Lexicon, Maker, Pair, Share, draw, words_as_tokens

from . import facts, words
from .registry import TASKS

# Prompts per step. Arithmetic needs by far the most. Each question includes a solved one.
COUNTS = {
    "ioi": 6,
    "ioi_long": 4,
    "docstring": 8,
    "greater_than": 8,
    "math": 56,
    "syntax": 4,
    "common_sense": 20,
    "retrieval": 12,
    "knowledge_recall": 4,
    "math_calculation": 18,
    "inference": 18,
}
# Options used in turn, so that positions alone solve nothing and some questions are easier.
VARIANTS = {
    "ioi_long": [{"length": length} for length in (60, 70, 80, 100)],
    "docstring": [
        {"prefix": prefix, "matching": matching, "suffix": suffix}
        for prefix, matching, suffix in ((2, 3, 1), (1, 3, 2), (3, 3, 0), (2, 2, 2), (1, 2, 1))
    ],
    "common_sense": [{"choices": 4}, {"choices": 2}, {"choices": 3}],
    "retrieval": [{"facts": 3}, {"facts": 2}, {"facts": 4}],
}
UNDECIDED = {"ioi": 0.12, "ioi_long": 0.12}


def shares(lexicon: Lexicon, total: int | None = None) -> dict[str, Share]:
    """Every task's share of a training step of about `total` prompts, at least one each."""
    scale = 1.0 if total is None else total / sum(COUNTS.values())
    makers = {
        name: tuple(TASKS[name].maker(lexicon, **options) for options in VARIANTS.get(name, [{}]))
        for name in COUNTS
    }
    years = makers["greater_than"]
    makers["greater_than"] = (*years * 3, *map(_from_01, years))
    return {
        name: Share(
            makers[name],
            max(1, round(count * scale)),
            UNDECIDED.get(name, 0.0),
        )
        for name, count in COUNTS.items()
    }


def _from_01(make: Maker) -> Maker:
    """The corrupted prompts, which start in the year 01, with any later year as the answer."""

    def made(rng: random.Random) -> Pair:
        pair = make(rng)
        years = (*pair.wrong, *pair.answers)
        return replace(pair, clean=pair.corrupt, answers=years[2:], wrong=years[:2])

    return made


def echoed_words(lexicon: Lexicon) -> list[str]:
    """Single-token words of the tasks, to be repeated in random order."""
    listed = {*words.NAMES, *facts.SURNAMES, *facts.THINGS, *facts.COLORS}
    return lexicon.single(sorted(listed), "words to repeat", at_least=40)


def held_out_pairs(lexicon: Lexicon, n: int) -> dict[str, list[Pair]]:
    """Test-split prompts of every task except greater_than, which has no single answer."""
    return {
        name: draw(TASKS[name].maker(lexicon), n, random.Random(f"{name}/held out"), "test")
        for name in TASKS.builtin
        if name != "greater_than"
    }


def texts() -> list[str]:
    """Texts that contain every word of the tasks: the word lists, and prompts for the rest."""
    lists = [
        value for home in (words, facts) for name, value in vars(home).items() if name.isupper()
    ]
    found = [f" {word}" for word in _words(lists)]
    for name in TASKS.builtin:
        maker, rng = TASKS[name].maker(words_as_tokens()), random.Random(name)
        for _ in range(600):
            pair = maker(rng)
            found += [pair.clean + pair.answers[0], pair.corrupt + pair.wrong[-1]]
    return found


def _words(value: object) -> Iterator[str]:
    """Every string in nested lists and tables."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from _words([*value, *value.values()])
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _words(inner)
