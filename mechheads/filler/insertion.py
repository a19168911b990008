r"""Prompts with a run inserted: the same original tokens, and new ones in one place.

- `none` and `arm`: the prompt unchanged;
- `mless`: a meaningless text ("/"), repeated;
- `mful`: a meaningful word unrelated to the question ("he"), repeated;
- `random`: random sentences.
All runs have exactly `length` tokens, plus the blank line that separates them from what follows. A
run that changes the tokenization of the text around it is rejected, since nothing would align.
"""

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mechheads.errors import MechheadsError
from mechheads.models.model import Model, encoder_of, model_name
from mechheads.prompts import Question

# What goes before and after a run; the second pair where the first does not fit.
GAPS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "start": (("", "\n\n"), ("", " \n\n")),
    "between": (("", "\n\n"), ("", " \n\n")),
    "end": ((" ", ""), ("", "")),
    "random": ((" ", ""), ("", "")),
}
# How tasks and question files introduce the question to answer.
ASKED = "\n\nQuestion: "
DRAWS = 20
SENTENCES = (
    "The old bridge crosses a quiet river near the village.",
    "My neighbor plants roses beside the garden wall every spring.",
    "Rain fell on the empty street all morning.",
    "She painted the kitchen door a soft shade of green.",
    "The train was late because of heavy snow.",
    "A small bird built its nest above our window.",
    "He reads the newspaper after breakfast and then walks the dog.",
    "The museum is closed on the first day of the week.",
    "Fresh bread smells wonderful in the early morning.",
    "They watched the boats return to the harbor at sunset.",
    "The teacher wrote a short poem on the board.",
    "Our cat sleeps on the warm stones by the door.",
    "A cold wind blew leaves across the yard.",
    "The children sang while their mother played the piano.",
    "He forgot his umbrella in the back of the taxi.",
    "The lamp on the desk gives a yellow light.",
    "She found an old letter between the pages of a book.",
    "The market sells fish, cheese and wild honey.",
    "Clouds gathered over the hills in the afternoon.",
    "The doctor told him to rest and drink more water.",
    "A long road leads from the castle to the sea.",
    "The tailor mended my coat with a dark thread.",
    "We listened to the radio while the soup was cooking.",
    "The farmer closed the gate and counted his sheep.",
    "Her brother collects stamps from distant islands.",
    "The clock in the tower has not moved for years.",
    "A young actor forgot his lines on the stage.",
    "The mountains look blue in the distance.",
    "The baker opened his shop before the sun came up.",
    "Somebody left a red scarf on the bench in the park.",
    "The river freezes when winter is very hard.",
    "They moved the heavy table closer to the fire.",
    "The sailor told stories about storms and whales.",
    "Nobody knew who had locked the garden shed.",
    "The curtains were drawn and the house was silent.",
    "An artist sketched the horses behind the fence.",
)


@dataclass(frozen=True)
class Inserted:
    """A prompt's token ids: `cut` original ones, then `run` inserted ones, then the rest.

    `tokens` of the run are filler, the others separate it from the text.
    """

    text: str
    ids: tuple[int, ...]
    cut: int
    run: int
    tokens: int

    @property
    def original(self) -> list[int]:
        """The positions of the original tokens."""
        return [i for i in range(len(self.ids)) if not self.cut <= i < self.cut + self.run]


def insert(model: Model, text: str, run: str, at: int, after: str = "") -> Inserted:
    """Insert the run and its separator before character `at`; an error if other tokens change."""
    plain = encoder_of(model).ids(text)
    if not run:
        return Inserted(text, plain, len(plain), 0, 0)
    spans = _spans(model, text)
    cut = len(plain) - sum(end > at for _, end in spans)
    whole = text[:at] + run + after + text[at:]
    ids = encoder_of(model).ids(whole)
    more = len(ids) - len(plain)
    kept = ids[:cut] == plain[:cut] and ids[cut + more :] == plain[cut:]
    if not kept or more < 1 or any(start < at < end for start, end in spans):
        near = f"{text[max(0, at - 12) : at]!r} and {text[at : at + 12]!r}"
        raise MechheadsError(
            f"the filler {_short(run)} changes how {model_name(model)} tokenizes the text around "
            f"it ({near}). Use another --filler or --place."
        )
    tokens = sum(at < end <= at + len(run) for _, end in _spans(model, whole))
    return Inserted(whole, ids, cut, more, tokens)


def place_in(model: Model, text: str, place: str, instruction: str, rng: random.Random) -> int:
    """The character before which the run goes.

    - `start`: before everything;
    - `between`: before the question, after the instruction that the text begins with; without one,
      after the task's own instruction and solved examples;
    - `end`: after everything, so that the answer follows the run;
    - `random`: between two words.
    """
    if place == "start":
        return 0
    if place == "end":
        return len(text)
    if place == "random":
        return rng.choice(sorted(spaces(model, text).values()) or [0])
    if instruction:
        return len(instruction) + 2
    block = text.rfind(ASKED)
    if block < 0:
        raise MechheadsError(
            "--place between needs an instruction before the question, but there is none. Give "
            "--instruction for a file of questions, otherwise use --place start."
        )
    return block + 2


def instructed(question: Question, instruction: str) -> str:
    """The question's prompt after an instruction, as `place_in` expects it."""
    return f"{instruction}\n\n{question.prompt}" if instruction else question.prompt


def spaces(model: Model, text: str) -> dict[int, int]:
    """The spaces between words: character index by number of tokens before it."""
    spans = _spans(model, text)
    return {
        sum(end <= at for _, end in spans): at
        for at, letter in enumerate(text[:-1])
        if letter == " " and at and not any(start < at < end for start, end in spans)
    }


def shared_places(model: Model, texts: Sequence[str], seed: int) -> dict[int, int]:
    """A space after the same number of tokens in as many texts of equal length as possible.

    Returns character index by text index; texts without such a space are left out.
    """
    found = [spaces(model, text) for text in texts]
    sizes = [len(encoder_of(model).ids(text)) for text in texts]
    counts = Counter((sizes[i], cut) for i, places in enumerate(found) for cut in places)
    most = max(counts.values(), default=0)
    best = sorted(key for key, count in counts.items() if count == most)
    size, cut = random.Random(seed).choice(best or [(0, 0)])
    return {i: p[cut] for i, p in enumerate(found) if sizes[i] == size and cut in p}


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
    instruction: str = "",
    places: Sequence[int] | None = None,
) -> list[Inserted]:
    """Every question with a run of the condition; each question has its own random run.

    The prompts begin with the instruction. `places` are the characters where runs go, if known.
    """
    made = []
    for i, question in enumerate(questions):
        text = instructed(question, instruction)
        if condition in ("none", "arm") or length == 0:
            made.append(insert(model, text, "", 0))
            continue
        rng = random.Random(f"{seed}/{i}")
        at = places[i] if places else place_in(model, text, place, instruction, rng)
        runs: dict[str, Iterator[str]] = {
            "mless": (joiner.join([filler] * length) for joiner in (" ", "")),
            "mful": iter([" ".join([word] * length)]),
            "random": (" ".join(rng.choices(SENTENCES, k=1 + length // 5)) for _ in range(DRAWS)),
        }
        trim = condition != "mless"
        made.append(_fill(model, text, at, place, runs[condition], length, trim=trim))
    return made


def _fill(
    model: Model, text: str, at: int, place: str, runs: Iterator[str], length: int, *, trim: bool
) -> Inserted:
    """The first run, trimmed or as is, that has `length` tokens.

    A run that ends in a space, which may merge with what follows, is used only if no other fits.
    """
    counts: dict[int, None] = {}
    refused = spare = None
    for run in runs:
        for before, after in GAPS[place]:
            used = before + run
            used = _trimmed(model, text[:at], used, length) if trim else used
            try:
                found = insert(model, text, used, at, after)
            except MechheadsError as error:
                refused = refused or error
                continue
            if found.tokens == length and not used.endswith(" "):
                return found
            spare = spare or (found if found.tokens == length else None)
            counts[found.tokens] = None
    if spare:
        return spare
    if not counts and refused:
        raise refused
    raise MechheadsError(
        f"{_short(run)} is {' or '.join(map(str, counts))} tokens for {model_name(model)}, "
        f"not the {length} of --length. Use another --{'word' if trim else 'filler'}."
    )


def _trimmed(model: Model, before: str, run: str, length: int) -> str:
    """The beginning of the run that has `length` tokens after the text."""
    ends = [end - len(before) for _, end in _spans(model, before + run)]
    inside = [end for end in ends if end > 0]
    return run[: inside[length - 1]] if len(inside) >= length else run


def _spans(model: Model, text: str) -> list[tuple[int, int]]:
    """Where every token begins and ends in the text, without the BOS token."""
    tokenizer = encoder_of(model).tokenizer
    if not tokenizer.is_fast:
        raise MechheadsError(
            f"the tokenizer of {model_name(model)} does not report token offsets. Use a model "
            "that has a tokenizer.json."
        )
    found = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    return found["offset_mapping"]


def _short(run: str) -> str:
    return repr(run if len(run) < 24 else f"{run[:20]}...")
