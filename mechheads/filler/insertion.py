"""Prompts with a run inserted: the same original tokens, and new ones in one place.

- `none`: as it is;
- `mless`: a meaningless text ("/") repeated;
- `mful`: a meaningful word that has nothing to do with the question ("he") repeated;
- `random`: a sentence of random words.
The last two have as many tokens as the first, or the nearest number below. A run that changes how
the text around it is split into tokens is refused: then nothing would align.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from ..batches import token_ids
from ..errors import MechheadsError
from ..models import Model
from ..prompts import Question

CONDITIONS = ("none", "mless", "mful", "random")
PLACES = ("start", "between", "end", "random")
# Common words of one token for nearly every tokenizer; others are left out.
WORDS = (
    "the of and to in that was his he it with is for as had you not be her on at by which have "
    "or from this him but all she they were my are me one their so an said them we who would been "
    "will no when there if more out up into do any your what has man could other than our some "
    "very time about may its only now like little then can made should did us such great before "
    "must two these see know over much down after first good men own never most old shall day"
).split()


@dataclass(frozen=True)
class Inserted:
    """A prompt's token ids; `cut` original ones stand before the run, which has `run` tokens."""

    text: str
    ids: tuple[int, ...]
    cut: int
    run: int

    @property
    def original(self) -> list[int]:
        """The positions of the original tokens."""
        return [i for i in range(len(self.ids)) if not self.cut <= i < self.cut + self.run]


def insert(model: Model, text: str, run: str, at: int) -> Inserted:
    """The run before character `at` of the text; an error if the text around it splits anew."""
    plain = token_ids(model, text)
    if not run:
        return Inserted(text, plain, len(plain), 0)
    whole = text[:at] + run + text[at:]
    ids = token_ids(model, whole)
    cut = len(token_ids(model, text[:at]))
    after = len(plain) - cut
    kept = ids[:cut] == plain[:cut] and (after == 0 or ids[-after:] == plain[cut:])
    if not kept or len(ids) < len(plain):
        near = f"{text[max(0, at - 12) : at]!r} and {text[at : at + 12]!r}"
        shown = run if len(run) < 24 else f"{run[:20]}..."
        raise MechheadsError(
            f"the filler {shown!r} changes how {model.cfg.model_name} splits the text around it "
            f"({near}) into tokens. Use another --filler or --place."
        )
    return Inserted(whole, ids, cut, len(ids) - len(plain))


def place_in(text: str, place: str, rng: random.Random) -> tuple[int, str, str]:
    """The character where a run goes, and what stands before and after it.

    - `start`: before everything;
    - `between`: before the last question, after the instruction and solved examples; before
      everything where the prompt has one part only;
    - `end`: after everything, so that the answer follows the run;
    - `random`: between two words.
    """
    if place == "end":
        return len(text), " ", ""
    if place == "between":
        block = text.rfind("\n\n")
        return (block + 2 if block >= 0 else 0), "", "\n\n"
    if place == "random":
        spaces = [i for i, letter in enumerate(text) if letter == " " and 0 < i < len(text) - 1]
        return (rng.choice(spaces) if spaces else 0), " ", ""
    return 0, "", "\n\n"


def words_of(model: Model, condition: str, word: str, n: int, seed: str) -> list[str]:
    """n times the word (`mful`), or n random ones that are a token each after a space."""
    if condition == "mful":
        return [word] * n
    known = [w for w in WORDS if len(token_ids(model, f" {w}")) == len(token_ids(model, "")) + 1]
    if not known:
        raise MechheadsError(
            f"{model.cfg.model_name} splits every common word into pieces. Leave out the condition "
            "random: --conditions none,mless,mful."
        )
    return random.Random(seed).choices(known, k=n)


def make(
    model: Model,
    questions: Sequence[Question],
    condition: str,
    *,
    filler: str = "/",
    word: str = "he",
    length: int = 55,
    place: str = "between",
    seed: int = 0,
) -> list[Inserted]:
    """Every question with a run of the condition; a question's random run is its own."""
    made = []
    for i, question in enumerate(questions):
        text = question.prompt
        at, before, after = place_in(text, place, random.Random(f"{seed}/{i}"))
        if condition == "none" or length == 0:
            made.append(insert(model, text, "", at))
            continue
        meaningless = insert(model, text, before + filler * length + after, at)
        if condition == "mless":
            made.append(meaningless)
            continue
        words = words_of(model, condition, word, meaningless.run, f"{seed}/{i}/{condition}")
        # The most words that have no more tokens than the filler.
        found = None
        for n in range(1, len(words) + 1):
            longer = insert(model, text, before + " ".join(words[:n]) + after, at)
            if longer.run > meaningless.run:
                break
            found = longer
        if found is None:
            raise MechheadsError(
                f"{words[0]!r} has more than the {meaningless.run} tokens of the filler for "
                f"{model.cfg.model_name}. Use a --word of one token, or a larger --length."
            )
        made.append(found)
    return made
