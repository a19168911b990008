"""Pairs of random names for tests of the engine: any model, any place where they differ."""

import random
from typing import Any

import tasks.words as words
from mechheads.prompts import Pair, Prompts


def random_pairs(
    model: Any, first: int, lengths: tuple[int, ...] = (9, 9, 9), *, tokens: int = 1
) -> Prompts:
    """A pair per length that differs at position `first` alone (from the end if it is negative).

    Answers have so many tokens.
    """
    tokenizer: Any = model.tokenizer
    rng = random.Random(first)
    # Tokenizers that take the tests' words apart still know digits.
    texts = [*(f" {name}" for name in words.NAMES[:40]), *"0123456789"]
    names = [t for t in texts if len(tokenizer.encode(t, add_special_tokens=False)) == 1]
    bos = int(model.cfg.default_prepend_bos)
    pairs = []
    for length in lengths:
        clean = rng.choices(names, k=length - bos)
        corrupt = list(clean)
        at = (first if first >= 0 else length + first) - bos
        corrupt[at] = rng.choice([name for name in names if name != clean[at]])
        answers = rng.sample(names, 2 * tokens)
        right, wrong = "".join(answers[:tokens]), "".join(answers[tokens:])
        pairs.append(Pair("".join(clean), "".join(corrupt), (right,), (wrong,)))
    return Prompts("random names", "logit_diff", tuple(pairs))
