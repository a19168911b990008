"""What the embedded model is trained on: the share of every task in a step, and its words."""

import random
from collections.abc import Iterator

from mechheads.prompts import Lexicon, Pair, Share, draw, words_as_tokens

from . import TASKS, facts, words

# Prompts per step, from a share of the steps on. Arithmetic needs by far the most. Questions hold a
# solved one each. Those that need several hops through the context are learned last, and get more
# of the second phase.
PHASES = (
    (
        0.0,
        {
            "ioi": 12,
            "ioi_long": 8,
            "docstring": 12,
            "greater_than": 10,
            "math": 96,
            "syntax": 14,
            "common_sense": 14,
            "retrieval": 10,
            "knowledge_recall": 10,
            "math_calculation": 18,
            "inference": 14,
        },
    ),
    (
        0.4,
        {
            "ioi": 8,
            "ioi_long": 6,
            "docstring": 10,
            "greater_than": 10,
            "math": 96,
            "syntax": 6,
            "common_sense": 30,
            "retrieval": 24,
            "knowledge_recall": 6,
            "math_calculation": 14,
            "inference": 24,
        },
    ),
)
# Options in turn, so that positions alone solve nothing, and some questions are easier.
VARIANTS = {
    "ioi_long": [{"length": length} for length in (60, 70, 80, 100)],
    "docstring": [
        {"prefix": prefix, "matching": matching, "suffix": suffix}
        for prefix, matching, suffix in ((2, 3, 1), (1, 3, 2), (3, 3, 0), (2, 2, 2), (1, 2, 1))
    ],
}
EASIER = VARIANTS | {
    "common_sense": [{"choices": 4}, {"choices": 2}, {"choices": 3}],
    "retrieval": [{"facts": 3}, {"facts": 2}, {"facts": 4}],
}
UNDECIDED = {"ioi": 0.12, "ioi_long": 0.12}


def phases(lexicon: Lexicon) -> list[tuple[float, dict[str, Share]]]:
    """Every task's share of a training step, from a share of the steps on."""
    return [
        (begin, _shares(lexicon, counts, EASIER if begin else VARIANTS)) for begin, counts in PHASES
    ]


def shares(lexicon: Lexicon, total: int) -> dict[str, Share]:
    """Every task's share of a step of about `total` prompts, at least one each."""
    counts = PHASES[-1][1]
    scale = total / sum(counts.values())
    scaled = {name: max(1, round(count * scale)) for name, count in counts.items()}
    return _shares(lexicon, scaled, VARIANTS)


def _shares(
    lexicon: Lexicon, counts: dict[str, int], variants: dict[str, list[dict[str, int]]]
) -> dict[str, Share]:
    return {
        name: Share(
            tuple(TASKS[name].maker(lexicon, **options) for options in variants.get(name, [{}])),
            count,
            UNDECIDED.get(name, 0.0),
        )
        for name, count in counts.items()
    }


def held_out_pairs(lexicon: Lexicon, n: int) -> dict[str, list[Pair]]:
    """Prompts of the test split of every task but greater_than, which has no single answer."""
    return {
        name: draw(TASKS[name].maker(lexicon), n, random.Random(f"{name}/held out"), "test")
        for name in TASKS
        if name != "greater_than"
    }


def texts() -> list[str]:
    """Texts that hold every word of the tasks: the word lists, and prompts for all the rest."""
    found = [f" {word}" for listed in (words, facts) for word in _words(vars(listed))]
    for name, task in TASKS.items():
        maker, rng = task.maker(words_as_tokens()), random.Random(name)
        for _ in range(600):
            pair = maker(rng)
            found += [pair.clean + pair.answers[0], pair.corrupt + pair.wrong[-1]]
    return found


def _words(value: object) -> Iterator[str]:
    """Every text inside of lists and tables."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            if not str(key).startswith("_"):
                yield from _words([key, inner])
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _words(inner)
