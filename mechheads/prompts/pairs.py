"""Prompt pairs, which a task makes from a seed. Nothing here needs a model or torch."""

import hashlib
import html
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, overload

from mechheads.errors import MechheadsError

from .spans import Span
from .splits import held_out, split_groups

if TYPE_CHECKING:
    import pandas as pd

LEAST, MOST = 4, 1_000_000


class TokenIds(str):
    """A text that is a list of token ids, for models without a tokenizer: "5 17 3"."""

    __slots__ = ()

    @classmethod
    def of(cls, ids: int | Sequence[int]) -> "TokenIds":
        """The text of one id or several."""
        return cls(" ".join(map(str, [ids] if isinstance(ids, int) else ids)))

    @property
    def ids(self) -> tuple[int, ...]:
        """The ids."""
        return tuple(map(int, self.split()))


@dataclass(frozen=True)
class Pair:
    """A clean prompt, its corrupted twin, and what should and should not follow the clean one.

    `answers` are alternatives (greater-than has many) of one or more tokens each, including the
    leading space if any; `wrong` likewise. A pair may lack a corrupted twin ("") or wrong answers
    if nothing that is measured needs them. `group` names what the prompt is about (two people, two
    operands): a group is in the training or the test split, never in both. `subject` is what the
    last question is about, if the group also includes the solved examples before it.
    `source` says where the pair comes from, for example a file and line. `spans` name parts of the
    clean prompt; they are no part of the text, so pairs that differ only in them are equal.
    """

    clean: str
    corrupt: str
    answers: tuple[str, ...]
    wrong: tuple[str, ...]
    group: str = ""
    subject: str = ""
    source: str = field(default="", compare=False)
    spans: tuple[Span, ...] = field(default=(), compare=False)


Maker = Callable[[random.Random], Pair]
Split = Literal["test", "train", "all"]


@dataclass(frozen=True)
class Share:
    """A task's share of a training step: makers to draw from in turn, and how many prompts.

    A fraction `undecided` of them are corrupted prompts without a right answer, answered at random,
    which teaches a model to have no preference there.
    """

    makers: tuple[Maker, ...]
    count: int
    undecided: float = 0.0


@dataclass(frozen=True)
class Prompts:
    """The pairs of one task and the settings that made them; equal settings give equal prompts.

    `skipped` counts the pairs of a file that were left out because they cannot be used.
    """

    task: str
    metric: str
    pairs: tuple[Pair, ...]
    seed: int = 0
    split: str = "all"
    options: Mapping[str, Any] = field(default_factory=dict)
    skipped: int = 0

    def __len__(self) -> int:
        """Number of pairs."""
        return len(self.pairs)

    def __iter__(self) -> Iterator[Pair]:
        """The pairs, one after the other."""
        return iter(self.pairs)

    @overload
    def __getitem__(self, which: int) -> Pair: ...
    @overload
    def __getitem__(self, which: slice) -> "Prompts": ...
    def __getitem__(self, which: int | slice) -> "Pair | Prompts":
        """prompts[3] is a pair, prompts[:8] are prompts."""
        if isinstance(which, slice):
            return replace(self, pairs=self.pairs[which])
        return self.pairs[which]

    def __add__(self, other: "Prompts") -> "Prompts":
        """The pairs of both; they must have the same metric."""
        if not isinstance(other, Prompts):
            return NotImplemented
        if self.metric != other.metric:
            raise MechheadsError(
                f"{self.task} is measured by {self.metric} and {other.task} by {other.metric}. "
                'Give both the same metric first: replace(prompts, metric="logprob").'
            )
        task = self.task if self.task == other.task else f"{self.task}+{other.task}"
        return replace(self, task=task, pairs=self.pairs + other.pairs)

    def filter(self, wanted: Callable[[Pair], bool]) -> "Prompts":
        """The pairs for which the function is true."""
        return replace(self, pairs=tuple(pair for pair in self.pairs if wanted(pair)))

    def first(self, n: int) -> "Prompts":
        """The first n pairs."""
        return self[:n]

    def split_at(self, n: int) -> "tuple[Prompts, Prompts]":
        """Split into n pairs and the others; no group is on both sides."""
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

    def __repr__(self) -> str:
        """In a line; `frame()` shows the pairs."""
        return f"<Prompts: {len(self)} of {self.task}, metric {self.metric}>"

    def _repr_html_(self) -> str:
        words = f"{len(self)} prompts of {html.escape(self.task)}, metric {self.metric}"
        return f"<p>{words}</p>{self.frame().head(10).to_html(index=False)}"

    def digest(self) -> str:
        """SHA-256 of the text of all pairs, for provenance."""
        rows = [[p.clean, p.corrupt, p.answers, p.wrong] for p in self.pairs]
        return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def check_given(prompts: Any) -> None:
    """Raise if these are not prompts, or none at all."""
    if not isinstance(prompts, Prompts):
        shown = f"the name {prompts!r}" if isinstance(prompts, str) else type(prompts).__name__
        raise MechheadsError(f"Expected what tasks.make returns, not {shown}.")
    if not prompts.pairs:
        raise MechheadsError(f"There are no prompts of {prompts.task}. Give at least one.")


def check_prompts(flag: str, n: int) -> None:
    """Raise if there are too few prompts to estimate their spread, or far too many."""
    if n > MOST:
        raise MechheadsError(f"{flag} takes up to {MOST:,} prompts, got {n:,}.")
    if n < LEAST:
        raise MechheadsError(
            f"{flag} takes {LEAST} or more prompts, got {n}: fewer say nothing about their spread."
        )


def draw(
    make: Maker, n: int, rng: random.Random, split: str = "all", *, or_all: bool = False
) -> list[Pair]:
    """n different pairs of the split; from the same state, a larger n only adds pairs.

    If there are fewer, raises an error, or with `or_all` returns all of them.
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
                f"split {split!r}, but {n} were requested. Request fewer, widen the options, or "
                "use --split all."
            )
        if usable:
            pairs.setdefault(pair.clean, pair)
    return list(pairs.values())
