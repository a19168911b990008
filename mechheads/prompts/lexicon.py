"""How a tokenizer splits mid-sentence text: all that a task may know about a model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mechheads.errors import MechheadsError


@dataclass(frozen=True)
class Lexicon:
    """How a tokenizer splits mid-sentence text: `split(" Mary")` gives the token ids of " Mary"."""

    name: str
    split: Callable[[str], tuple[int, ...]]

    def single(self, words: Sequence[str], kind: str, at_least: int) -> list[str]:
        """The words that are one token after a space; raises if fewer than `at_least`."""
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
    """A lexicon without a model: every word is one token, e.g. to inspect a task."""
    return Lexicon("plain words", lambda text: tuple(range(max(1, len(text.split())))))


def lexicon_of(source: Any) -> Lexicon:
    """The lexicon of a model or a tokenizer; a lexicon is returned unchanged."""
    if isinstance(source, Lexicon):
        return source
    if isinstance(source, str):
        raise MechheadsError(
            f"Expected a loaded model, got the name {source!r}. Use mechheads.load({source!r})."
        )
    tokenizer = getattr(source, "tokenizer", source)
    if tokenizer is None:
        raise MechheadsError(
            "This model has no tokenizer. Give it one (model.set_tokenizer), or pass the tokenizer."
        )
    if not callable(getattr(tokenizer, "encode", None)):
        raise MechheadsError(
            f"Expected a model, a tokenizer or a Lexicon, got {type(source).__name__}. "
            'Load a model with mechheads.load("mini").'
        )
    name = Path(str(getattr(tokenizer, "name_or_path", "") or "the model")).name
    return tokenizer_lexicon(tokenizer, name)


def tokenizer_lexicon(tokenizer: Any, name: str) -> Lexicon:
    """How a Hugging Face tokenizer splits mid-sentence text."""
    before = tuple(tokenizer.encode("The", add_special_tokens=False))

    def split(text: str) -> tuple[int, ...]:
        ids = tuple(tokenizer.encode(f"The{text}", add_special_tokens=False))
        if ids[: len(before)] == before:
            return ids[len(before) :]
        return tuple(tokenizer.encode(text, add_special_tokens=False))

    return Lexicon(name, split)
