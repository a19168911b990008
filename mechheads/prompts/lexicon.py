"""How a tokenizer splits mid-sentence text: all that a task may know about a model."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from mechheads.errors import MechheadsError

from .encoder import Encoder

ENDLESS = 2**31  # tokens
KEPT = 50_000  # words and sentences whose tokens are kept: tasks ask for the same ones again


@dataclass(frozen=True)
class Lexicon:
    """How a tokenizer splits mid-sentence text: `split(" Mary")` gives the token ids of " Mary".

    `unknown` is the token that stands for words that are not in the vocabulary, if there is one.
    """

    name: str
    split: Callable[[str], tuple[int, ...]]
    unknown: int | None = None

    def single(self, words: Sequence[str], kind: str, at_least: int) -> list[str]:
        """The words that are one token after a space; raises if fewer than `at_least`."""
        if len(words) < at_least:
            raise MechheadsError(
                f"{len(words)} {kind} are too few: with these options the task needs {at_least}."
            )
        split = {word: self.split(f" {word}") for word in words}
        kept = [word for word in words if len(split[word]) == 1 and split[word][0] != self.unknown]
        if len(kept) < at_least:
            raise MechheadsError(
                f"Only {len(kept)} of {len(words)} {kind} are single tokens for the tokenizer of "
                f"{self.name}; this task needs {at_least}. Use a model with a larger vocabulary."
            )
        return kept


def words_as_tokens() -> Lexicon:
    """A lexicon without a model: every word is one token, e.g. to inspect a task.

    Returns:
        Lexicon: takes the place of a model in `tasks.make`.

    >>> import tasks
    >>> len(tasks.make("ioi", tasks.words_as_tokens(), n=5))
    5
    """
    return Lexicon("plain words", lambda text: tuple(range(max(1, len(text.split())))))


def lexicon_of(source: Any) -> Lexicon:
    """The lexicon of a model or a tokenizer; a lexicon is returned unchanged."""
    if isinstance(source, Lexicon):
        return source
    tokenizer = tokenizer_of(source)
    return tokenizer_lexicon(tokenizer, _name(tokenizer))


def encoder_for(source: Any) -> Encoder:
    """How a model or a tokenizer reads text, without BOS and without limits."""
    tokenizer = tokenizer_of(source)
    return Encoder(_name(tokenizer), tokenizer, False, ENDLESS, ENDLESS)


def tokenizer_of(source: Any) -> Any:
    """The tokenizer of a model; a tokenizer is returned unchanged."""
    if isinstance(source, str):
        raise MechheadsError(
            f"Expected a loaded model, got the name {source!r}. Use mechheads.load({source!r})."
        )
    tokenizer = getattr(source, "tokenizer", source)
    if tokenizer is source and hasattr(source, "config"):
        tokenizer = own_tokenizer(source)
    if tokenizer is None:
        raise MechheadsError(
            "This model has no tokenizer. Give it one, mechheads.wrap(model, tokenizer), or pass "
            "the tokenizer itself."
        )
    if not callable(getattr(tokenizer, "encode", None)):
        raise MechheadsError(
            f"Expected a model with a tokenizer, a tokenizer or a Lexicon, got "
            f"{type(source).__name__}. Use mechheads.load, or mechheads.wrap(model, tokenizer)."
        )
    return tokenizer


def own_tokenizer(hf_model: Any) -> Any:
    """The tokenizer of the folder or hub id that a transformers model was loaded from.

    None if it is not on this machine. It is kept with the model.
    """
    if "tokenizer" not in hf_model.__dict__:
        from transformers import AutoTokenizer

        found, place = None, str(getattr(hf_model.config, "_name_or_path", "") or "")
        with suppress(Exception):  # the folder may be gone, or never have had a tokenizer
            found = AutoTokenizer.from_pretrained(place, local_files_only=True) if place else None
        hf_model.__dict__["tokenizer"] = found
    return hf_model.__dict__["tokenizer"]


def _name(tokenizer: Any) -> str:
    return Path(str(getattr(tokenizer, "name_or_path", "") or "the model")).name


def tokenizer_lexicon(tokenizer: Any, name: str) -> Lexicon:
    """How a Hugging Face tokenizer splits mid-sentence text."""
    before = tuple(tokenizer.encode("The", add_special_tokens=False))

    @lru_cache(maxsize=KEPT)
    def split(text: str) -> tuple[int, ...]:
        ids = tuple(tokenizer.encode(f"The{text}", add_special_tokens=False))
        if ids[: len(before)] == before:
            return ids[len(before) :]
        return tuple(tokenizer.encode(text, add_special_tokens=False))

    return Lexicon(name, split, getattr(tokenizer, "unk_token_id", None))
