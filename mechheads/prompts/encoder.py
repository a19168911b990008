"""What it takes to turn prompts into a model's tokens: tokenizer, BOS convention, limits."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mechheads.errors import MechheadsError


@dataclass(frozen=True)
class Encoder:
    """A model's tokenizer and conventions; `vocabulary` is the number of its logits."""

    name: str
    tokenizer: Any
    prepend_bos: bool
    context: int
    vocabulary: int

    def ids(self, text: str) -> tuple[int, ...]:
        """A prompt's token ids, with the BOS token where the model expects one."""
        ids = self.plain_ids(text)
        return (self.tokenizer.bos_token_id, *ids) if self.prepend_bos else ids

    def plain_ids(self, text: str) -> tuple[int, ...]:
        """The token ids of the text alone, without special tokens."""
        ids = tuple(self.tokenizer.encode(text, add_special_tokens=False))
        if ids and max(ids) >= self.vocabulary:
            raise MechheadsError(
                f"The tokenizer of {self.name} gives the token id {max(ids)}, but the model has "
                f"{self.vocabulary} tokens. Use the tokenizer that belongs to the model."
            )
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of the tokens."""
        return self.tokenizer.decode(ids)

    def texts(self, ids: tuple[int, ...]) -> list[str]:
        """What each token adds to the text; together they are the prompt as the model sees it."""
        whole = [self.tokenizer.decode(ids[:i]) for i in range(len(ids) + 1)]
        return [after[len(before) :] for before, after in itertools.pairwise(whole)]
