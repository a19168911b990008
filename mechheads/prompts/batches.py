"""Aligned tokens in batches of one prompt length each.

1. Scoring an answer of several tokens needs the prompt followed by all of them but the last. A
   pair has one row per such continuation; with single-token answers that is the prompt alone.
2. Rows of one prompt length form a batch. Shorter continuations are padded after the tokens that
   are read, where a causal model cannot see them; prompts are never padded.
"""

import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .encoder import Encoder
from .pairs import Prompts
from .tokens import Tokens, tokenize

SMALL = 256  # tokens; a smaller batch is not worth a separate pass


@dataclass(frozen=True)
class Batch:
    """Pairs whose prompts have the same number of tokens.

    The logits at the last `steps` positions of every row score the answers. `choices` are the
    tokens of the right and wrong answers, -1 where there is none; `row_of` is the row that scores
    each answer. `reference` are the clean run's logits after the prompts, if a metric needs them.
    """

    pairs: Int[Tensor, " batch"]
    clean: Int[Tensor, "row pos"]
    corrupt: Int[Tensor, "row pos"]
    pair_of: Int[Tensor, " row"]
    choices: Int[Tensor, "batch choice steps"]
    row_of: Int[Tensor, "batch choice"]
    right: Bool[Tensor, "batch choice"]
    reference: Float[Tensor, "batch vocab"] | None = None

    @property
    def contrasted(self) -> bool:
        """Whether every pair has a wrong answer."""
        return bool((~self.right & (self.choices[:, :, 0] >= 0)).any(1).all())

    @property
    def steps(self) -> int:
        """Number of positions read at the end of each row."""
        return self.choices.shape[2]

    @property
    def length(self) -> int:
        """Tokens per row: those of the prompt, and all but the last of the answers."""
        return self.clean.shape[1]

    @property
    def prompt_length(self) -> int:
        """Tokens of each prompt alone."""
        return self.length - (self.steps - 1)

    @property
    def corrupt_prompts(self) -> Int[Tensor, "batch prompt_pos"]:
        """The corrupted prompts alone: a row per pair, without answers."""
        rows = torch.searchsorted(self.pair_of, torch.arange(len(self.pairs)))
        return self.corrupt[rows, : self.prompt_length]

    @property
    def differs(self) -> Bool[Tensor, "row pos"]:
        """Where the clean and corrupted prompts have different tokens."""
        return self.clean != self.corrupt

    @property
    def first(self) -> int:
        """The first position at which any pair differs; 0 if there are no corrupted prompts."""
        found = self.differs.any(0).nonzero()
        return int(found[0]) if len(found) else 0


def batches(encoder: Encoder, prompts: Prompts, max_tokens: int = 16384) -> Iterator[Batch]:
    """The prompts as batches of one length each, of at most about `max_tokens` tokens."""
    groups: dict[int, list[tuple[int, Tokens]]] = defaultdict(list)
    for i, tokens in enumerate(tokenize(encoder, prompts)):
        groups[len(tokens.clean)].append((i, tokens))
    for length in sorted(groups):
        chunk: list[tuple[int, Tokens]] = []
        used = 0
        # Pairs that differ only late get their own batch: what they share need not run twice.
        for i, tokens in sorted(groups[length], key=lambda entry: entry[1].first):
            steps = max(map(len, tokens.answers + tokens.wrong))
            logits = steps * encoder.vocabulary // 4096  # memory of a row's logits, in tokens
            cost = len(_rows(tokens)) * max(length, logits)
            later = bool(chunk) and tokens.first > chunk[0][1].first
            if chunk and (used + cost > max_tokens or (later and used > SMALL)):
                yield _batch(chunk)
                chunk, used = [], 0
            chunk.append((i, tokens))
            used += cost
        yield _batch(chunk)


def minibatches(encoder: Encoder, prompts: Prompts, size: int, seed: int) -> list[Batch]:
    """The prompts as batches of at most `size` prompts of one length each, shuffled by the seed."""
    groups: dict[int, list[tuple[int, Tokens]]] = defaultdict(list)
    order = list(range(len(prompts)))
    random.Random(seed).shuffle(order)
    tokenized = tokenize(encoder, prompts)
    for i in order:
        groups[len(tokenized[i].clean)].append((i, tokenized[i]))
    return [
        _batch(group[begin : begin + size])
        for _, group in sorted(groups.items())
        for begin in range(0, len(group), size)
    ]


def _rows(tokens: Tokens) -> list[tuple[int, ...]]:
    """The continuations to run: all but the last token of each answer, without duplicates."""
    contexts = sorted({c[:-1] for c in tokens.answers + tokens.wrong}, key=len, reverse=True)
    rows: list[tuple[int, ...]] = []
    for context in contexts:
        if not any(row[: len(context)] == context for row in rows):
            rows.append(context)
    return rows


def _batch(chunk: list[tuple[int, Tokens]]) -> Batch:
    steps = max(len(c) for _, t in chunk for c in t.answers + t.wrong)
    width = max(len(t.answers) + len(t.wrong) for _, t in chunk)
    choices = torch.full((len(chunk), width, steps), -1)
    row_of = torch.zeros((len(chunk), width), dtype=torch.long)
    right = torch.zeros((len(chunk), width), dtype=torch.bool)
    clean, corrupt, pair_of = [], [], []
    for b, (_, tokens) in enumerate(chunk):
        rows = _rows(tokens)
        for c, choice in enumerate(tokens.answers + tokens.wrong):
            choices[b, c, : len(choice)] = torch.tensor(choice)
            right[b, c] = c < len(tokens.answers)
            fits = (r for r, row in enumerate(rows) if row[: len(choice) - 1] == choice[:-1])
            row_of[b, c] = len(clean) + next(fits)
        for row in rows:
            filled = (*row, *[tokens.clean[-1]] * (steps - 1 - len(row)))
            clean.append((*tokens.clean, *filled))
            corrupt.append((*tokens.corrupt, *filled))
            pair_of.append(b)
    return Batch(
        pairs=torch.tensor([i for i, _ in chunk]),
        clean=torch.tensor(clean),
        corrupt=torch.tensor(corrupt),
        pair_of=torch.tensor(pair_of),
        choices=choices,
        row_of=row_of,
        right=right,
    )
