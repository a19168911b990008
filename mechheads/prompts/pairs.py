"""The prompt contract: what a task gives, and what it may know of a tokenizer.

A task makes `Pair`s of text from a seed. It sees the tokenizer only as a `Lexicon`: a function
that says how text in mid-sentence splits into tokens. Nothing here needs a model or torch.
"""

import hashlib
import inspect
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from mechheads.errors import MechheadsError, suggest, unknown

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Pair:
    """A clean prompt, its corrupted twin, and what should and should not follow the clean one.

    `answers` are alternatives (greater-than has many), each of one or more tokens and with its
    leading space where it has one; `wrong` likewise. `group` names what the prompt is about (two
    people, two operands): a group is in the training or in the test split, never in both.
    """

    clean: str
    corrupt: str
    answers: tuple[str, ...]
    wrong: tuple[str, ...]
    group: str = ""


Maker = Callable[[random.Random], Pair]

Split = Literal["test", "train", "all"]


@dataclass(frozen=True)
class Lexicon:
    """How a tokenizer splits text in mid-sentence: `split(" Mary")` is the token ids of " Mary"."""

    name: str
    split: Callable[[str], tuple[int, ...]]

    def single(self, words: Sequence[str], kind: str, at_least: int) -> list[str]:
        """Those of `words` that are one token after a space; an error if fewer than `at_least`."""
        if len(words) < at_least:
            raise MechheadsError(
                f"{len(words)} {kind} are too few: with these options the task needs {at_least}."
            )
        kept = [word for word in words if len(self.split(f" {word}")) == 1]
        if len(kept) < at_least:
            raise MechheadsError(
                f"Only {len(kept)} of {len(words)} {kind} are single tokens for the tokenizer of "
                f"{self.name}; this task needs {at_least}. Use a model with a larger vocabulary."
            )
        return kept


def words_as_tokens() -> Lexicon:
    """A lexicon without a model: every word is one token, so that a task can be looked at alone."""
    return Lexicon("plain words", lambda text: tuple(range(max(1, len(text.split())))))


@dataclass(frozen=True)
class Task:
    """A named question: `maker(lexicon, **options)` makes its pairs, `metric` judges them.

    `function` is the cognitive function that the task exercises, where it has a name.
    """

    name: str
    maker: Callable[..., Maker]
    metric: str
    function: str | None = None

    @property
    def summary(self) -> str:
        """The first line of the task module's docstring."""
        return (inspect.getdoc(inspect.getmodule(self.maker)) or "").partition("\n")[0]

    @property
    def options(self) -> dict[str, inspect.Parameter]:
        """The task's own options: the keyword-only arguments of `maker`."""
        parameters = inspect.signature(self.maker).parameters.values()
        return {p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY}

    def read_options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The given options as the task's types; text from a command line is converted."""
        for name in given:
            if name not in self.options:
                own = ", ".join(_flag(o) for o in self.options) or "none"
                raise MechheadsError(
                    f"unknown flag {_flag(name)}: task {self.name} has no such option (its own: "
                    f"{own}).{suggest(name, self.options)}"
                )
        return {
            name: read(value, self.options[name].annotation, _flag(name))
            for name, value in given.items()
        }


@dataclass(frozen=True)
class Share:
    """What a training step holds of a task: makers to draw from in turn, and how many prompts.

    A share `undecided` of them are corrupted prompts that have no right answer, answered at
    random, which teaches a model to have no preference there.
    """

    makers: tuple[Maker, ...]
    count: int
    undecided: float = 0.0


@dataclass(frozen=True)
class Prompts:
    """The pairs of one task with all that made them; equal settings give equal prompts."""

    task: str
    metric: str
    pairs: tuple[Pair, ...]
    seed: int = 0
    split: str = "all"
    options: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        """How many pairs."""
        return len(self.pairs)

    def first(self, n: int) -> "Prompts":
        """The first n pairs."""
        return replace(self, pairs=self.pairs[:n])

    def split_at(self, n: int) -> "tuple[Prompts, Prompts]":
        """n pairs, and the others; no group is on both sides."""
        sides = split_groups([pair.group or pair.clean for pair in self.pairs], n)
        one, two = (replace(self, pairs=tuple(self.pairs[i] for i in side)) for side in sides)
        return one, two

    def halves(self) -> "tuple[Prompts, Prompts]":
        """Two halves of the pairs; no group is in both."""
        return self.split_at(len(self) // 2)

    def frame(self) -> "pd.DataFrame":
        """A row per pair: clean, corrupt, answers, wrong."""
        import pandas as pd

        return pd.DataFrame(
            [(p.clean, p.corrupt, list(p.answers), list(p.wrong)) for p in self.pairs],
            columns=pd.Index(["clean", "corrupt", "answers", "wrong"]),
        )

    def digest(self) -> str:
        """SHA-256 of the text of all pairs, for provenance."""
        rows = [[p.clean, p.corrupt, p.answers, p.wrong] for p in self.pairs]
        return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


@dataclass(frozen=True)
class Question:
    """A prompt that is answered freely, and the answers that are right.

    `function` is the cognitive function that it exercises; `group` names what it is about, so that
    two questions of a group are never on both sides of a split.
    """

    prompt: str
    answers: tuple[str, ...]
    function: str
    group: str = ""


@dataclass(frozen=True)
class Questions:
    """The questions of one task or function, with the pairs they come from where there are any."""

    name: str
    items: tuple[Question, ...]
    prompts: Prompts | None = None

    def __len__(self) -> int:
        """How many."""
        return len(self.items)

    def split_at(self, n: int) -> "tuple[Questions, Questions]":
        """n questions, and the others; no group is on both sides."""
        one, two = split_groups([item.group or item.prompt for item in self.items], n)
        return self.only(one), self.only(two)

    def only(self, chosen: Sequence[int]) -> "Questions":
        """Some of the questions, with their pairs."""
        pairs = self.prompts and tuple(self.prompts.pairs[i] for i in chosen)
        return Questions(
            self.name,
            tuple(self.items[i] for i in chosen),
            replace(self.prompts, pairs=pairs) if self.prompts else None,
        )

    def digest(self) -> str:
        """SHA-256 of the text of all questions, for provenance."""
        rows = [[q.prompt, q.answers, q.function] for q in self.items]
        return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


LARGEST = 2**31 - 1  # of whole numbers: seeds are multiplied, and torch takes 64 bits


def read(value: Any, kind: Any, name: str) -> Any:
    """`value` as the annotated type `kind` (str, int, float, bool, Literal, X | None).

    Text from a command line is parsed; a list becomes a comma list where text is wanted.
    """
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise unknown(f"value for {name}:", str(value), get_args(kind))
        return value
    kinds = get_args(kind) or (kind,)
    if type(None) in kinds and (value is None or value == "None"):
        return None
    wanted = next(k for k in kinds if k is not type(None))
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    try:
        if wanted is bool:
            return {"true": True, "false": False}[str(value).lower()]
        if wanted is int and isinstance(value, float | bool):
            raise ValueError(value)
        if wanted is str and isinstance(value, list | tuple):
            return ",".join(map(str, value))
        found = wanted(value)
    except (ValueError, KeyError, TypeError):
        raise MechheadsError(f"{name} takes {words[wanted]}, got {value!r}.") from None
    if isinstance(found, int) and abs(found) > LARGEST:
        raise MechheadsError(f"{name} takes a whole number up to {LARGEST:,}, got {value}.")
    return found


LEAST, MOST = 4, 1_000_000


def check_prompts(flag: str, n: int) -> None:
    """An error if there are too few prompts to say how sure a number is, or far too many."""
    if n > MOST:
        raise MechheadsError(f"{flag} takes up to {MOST:,} prompts, got {n:,}.")
    if n < LEAST:
        raise MechheadsError(
            f"{flag} takes {LEAST} or more prompts, got {n}: fewer say nothing of their spread."
        )


def read_list(text: str, kind: Any, name: str) -> list[Any]:
    """A comma list as values of a type; at least one."""
    values = [read(part.strip(), kind, name) for part in text.split(",") if part.strip()]
    if not values:
        raise MechheadsError(f"{name} takes a list such as a,b; got nothing.")
    return values


def choices(kind: Any) -> tuple[str, ...]:
    """The values that an option of that annotation may take, if they are few enough to list."""
    return get_args(kind) if get_origin(kind) is Literal else ()


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def held_out(group: str) -> bool:
    """Whether a group belongs to the test split: one in ten, by its hash, on every machine."""
    return hashlib.sha256(group.encode()).digest()[0] < 26


def split_groups(groups: Sequence[str], n: int) -> tuple[list[int], list[int]]:
    """Which of the items are the n on one side, and which the others; groups stay together.

    Groups are taken in their order, as far as they fit: there are fewer than n only where no
    group is small enough for the last places.
    """
    members: dict[str, list[int]] = {}
    for i, group in enumerate(groups):
        members.setdefault(group, []).append(i)
    one: list[int] = []
    for listed in members.values():
        if len(one) + len(listed) <= n:
            one += listed
    chosen = set(one)
    return sorted(one), [i for i in range(len(groups)) if i not in chosen]


def draw(
    make: Maker, n: int, rng: random.Random, split: str = "all", *, or_all: bool = False
) -> list[Pair]:
    """n different pairs of the split; a larger n from the same state only adds to a smaller one.

    Where there are fewer, that is an error, or with `or_all` all of them are given.
    """
    pairs: dict[str, Pair] = {}
    misses = 0
    while len(pairs) < n:
        pair = make(rng)
        usable = split == "all" or held_out(pair.group) == (split == "test")
        misses = 0 if usable and pair.clean not in pairs else misses + 1
        if misses > 3000 and pairs and or_all:
            break
        if misses > 3000:
            raise MechheadsError(
                f"there are only about {len(pairs)} different prompts with these options in the "
                f"split {split!r}, {n} were asked for. Ask for fewer, widen the options, or take "
                "them from --split all."
            )
        if usable:
            pairs.setdefault(pair.clean, pair)
    return list(pairs.values())
