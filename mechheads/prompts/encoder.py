"""What it takes to turn prompts into a model's tokens: tokenizer, BOS convention, limits."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mechheads.errors import MechheadsError

from .pairs import TokenIds


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
        if isinstance(text, TokenIds):
            return ids  # as given
        return (self.tokenizer.bos_token_id, *ids) if self.prepend_bos else ids

    def plain_ids(self, text: str) -> tuple[int, ...]:
        """The token ids of the text alone, without special tokens."""
        if isinstance(text, TokenIds):
            if text.ids and not 0 <= min(text.ids) <= max(text.ids) < self.vocabulary:
                raise MechheadsError(
                    f"The token ids {text[:40]} are not all tokens of {self.name}, which has 0 to "
                    f"{self.vocabulary - 1}."
                )
            return text.ids
        if self.tokenizer is None:
            raise MechheadsError(
                f"{self.name} has no tokenizer, so it cannot read {text[:40]!r}. Make prompts of "
                "token ids with tasks.from_tokens, or give it a tokenizer: mechheads.wrap(model, "
                "tokenizer)."
            )
        ids = tuple(self.tokenizer.encode(text, add_special_tokens=False))
        if ids and max(ids) >= self.vocabulary:
            raise MechheadsError(
                f"The tokenizer of {self.name} gives the token id {max(ids)}, but the model has "
                f"{self.vocabulary} tokens. Use the tokenizer that belongs to the model."
            )
        return ids

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """For every token of `ids`, which characters [begin, end) of the text it has.

        A space before a word is not counted; BOS has none. Of token ids, token i has [i, i + 1).
        """
        ids = self.plain_ids(text)
        if isinstance(text, TokenIds):
            return [(i, i + 1) for i in range(len(ids))]
        if getattr(self.tokenizer, "is_fast", False):
            coded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
            found = [(begin, end) for begin, end in coded["offset_mapping"]]
        else:
            found = self._decoded_offsets(text, ids)
        found = [_without_space(text, begin, end) for begin, end in found]
        return [(0, 0), *found] if self.prepend_bos else found

    def _decoded_offsets(self, text: str, ids: tuple[int, ...]) -> list[tuple[int, int]]:
        """The same for a tokenizer that does not keep offsets: from what each token adds."""
        texts = self.texts(ids)
        shift = text.find("".join(texts))  # some tokenizers drop a space at the beginning
        if shift < 0:
            raise MechheadsError(
                f"The tokens of {self.name} do not spell {text[:40]!r}, so that it is unknown "
                "which characters they stand for. Use a fast tokenizer."
            )
        ends = itertools.accumulate(map(len, texts), initial=shift)
        # The first tokens of a character that has several add nothing.
        return [(begin, max(end, begin + 1)) for begin, end in itertools.pairwise(ends)]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of the tokens."""
        return TokenIds.of(ids) if self.tokenizer is None else self.tokenizer.decode(ids)

    def texts(self, ids: tuple[int, ...]) -> list[str]:
        """What each token adds to the text; together they are the prompt as the model sees it.

        A character of several tokens is added whole, by the last of them; the others add nothing.
        """
        if self.tokenizer is None:
            return list(map(str, ids))
        whole = self.tokenizer.decode(ids)
        # What is decoded of an unfinished character differs from the whole text.
        ends = [_shared(self.tokenizer.decode(ids[:i]), whole) for i in range(len(ids))]
        ends = [*itertools.accumulate(ends, max), len(whole)]
        return [whole[begin:end] for begin, end in itertools.pairwise(ends)]


def _without_space(text: str, begin: int, end: int) -> tuple[int, int]:
    """The characters without spaces before a word; those that are all spaces stay."""
    word = text[begin:end].lstrip()
    return (end - len(word), end) if word else (begin, end)


def _shared(one: str, other: str) -> int:
    """The number of characters with which both begin."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
