"""Turns pairs of text into aligned tokens, in batches of one prompt length each.

1. The clean and corrupted prompts must have the same number of tokens, so that positions align.
2. An answer's tokens continue the prompt's: they come from prompt + answer if that keeps the
   prompt's tokens, else from the answer alone, which must then decode to the same text.
3. Scoring an answer of several tokens needs the prompt followed by all of them but the last. A
   pair has one row per such continuation; with single-token answers that is the prompt alone.
4. Rows of one prompt length form a batch. Shorter continuations are padded after the tokens that
   are read, where a causal model cannot see them; prompts are never padded.
"""

import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from mechheads.errors import MechheadsError

from .encoder import Encoder
from .pairs import Pair, Prompts

SMALL = 256  # tokens; a smaller batch is not worth a separate pass


@dataclass(frozen=True)
class Batch:
    """Pairs whose prompts have the same number of tokens.

    The logits at the last `steps` positions of every row score the answers. `choices` are the
    tokens of the right and wrong answers, -1 where there is none; `row_of` is the row that scores
    each answer.
    """

    pairs: Int[Tensor, " batch"]
    clean: Int[Tensor, "row pos"]
    corrupt: Int[Tensor, "row pos"]
    pair_of: Int[Tensor, " row"]
    choices: Int[Tensor, "batch choice steps"]
    row_of: Int[Tensor, "batch choice"]
    right: Bool[Tensor, "batch choice"]

    @property
    def steps(self) -> int:
        """Number of positions read at the end of each row."""
        return self.choices.shape[2]

    @property
    def length(self) -> int:
        """Tokens per row: those of the prompt, and all but the last of the answers."""
        return self.clean.shape[1]

    @property
    def differs(self) -> Bool[Tensor, "row pos"]:
        """Where the clean and corrupted prompts have different tokens."""
        return self.clean != self.corrupt

    @property
    def first(self) -> int:
        """The first position at which any pair differs."""
        return int(self.differs.any(0).nonzero()[0])


@dataclass(frozen=True)
class _Tokens:
    """One pair as token ids."""

    clean: tuple[int, ...]
    corrupt: tuple[int, ...]
    answers: list[tuple[int, ...]]
    wrong: list[tuple[int, ...]]

    @property
    def first(self) -> int:
        """The first position at which the prompts differ."""
        return next(
            i for i, (a, b) in enumerate(zip(self.clean, self.corrupt, strict=True)) if a != b
        )


def batches(encoder: Encoder, prompts: Prompts, max_tokens: int = 16384) -> Iterator[Batch]:
    """The prompts as batches of one length each, of at most about `max_tokens` tokens."""
    groups: dict[int, list[tuple[int, _Tokens]]] = defaultdict(list)
    for i, pair in enumerate(prompts.pairs):
        tokens = _tokenize(encoder, pair, _where(i, pair, prompts))
        groups[len(tokens.clean)].append((i, tokens))
    for length in sorted(groups):
        chunk: list[tuple[int, _Tokens]] = []
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
    groups: dict[int, list[tuple[int, _Tokens]]] = defaultdict(list)
    order = list(range(len(prompts)))
    random.Random(seed).shuffle(order)
    for i in order:
        tokens = _tokenize(encoder, prompts.pairs[i], _where(i, prompts.pairs[i], prompts))
        groups[len(tokens.clean)].append((i, tokens))
    return [
        _batch(group[begin : begin + size])
        for _, group in sorted(groups.items())
        for begin in range(0, len(group), size)
    ]


def _where(i: int, pair: Pair, prompts: Prompts) -> str:
    start = pair.clean if len(pair.clean) < 40 else f"{pair.clean[:36]}..."
    return f"{pair.source or f'Prompt {i + 1} of task {prompts.task}'} ({start!r})"


def _tokenize(encoder: Encoder, pair: Pair, where: str) -> _Tokens:
    clean, corrupt = encoder.ids(pair.clean), encoder.ids(pair.corrupt)
    if len(clean) != len(corrupt):
        raise MechheadsError(
            f"{where}: clean has {len(clean)} tokens, corrupt has {len(corrupt)}. "
            "Pick words that tokenize alike."
        )
    if clean == corrupt:
        raise MechheadsError(f"{where}: clean and corrupt are the same. Change a word in one.")
    answers = [_continue(encoder, pair.clean, clean, a, where) for a in pair.answers]
    wrong = [_continue(encoder, pair.clean, clean, w, where) for w in pair.wrong]
    if both := set(answers) & set(wrong):
        text = pair.answers[answers.index(both.pop())]
        raise MechheadsError(f"{where}: {text!r} has the same tokens as a wrong answer. Drop one.")
    longest = len(clean) + max(map(len, answers + wrong)) - 1
    if longest > encoder.context:
        raise MechheadsError(
            f"{where} has {longest} tokens, but {encoder.name} takes {encoder.context}. "
            "Use shorter prompts, or load the model with a larger n_ctx if it allows one."
        )
    return _Tokens(clean, corrupt, answers, wrong)


def _continue(
    encoder: Encoder, prompt: str, before: tuple[int, ...], answer: str, where: str
) -> tuple[int, ...]:
    """The answer's tokens after those of the prompt."""
    joint = encoder.ids(prompt + answer)
    if joint[: len(before)] == before and len(joint) > len(before):
        return joint[len(before) :]
    alone = encoder.plain_ids(answer)
    if alone and encoder.decode(before + alone) == encoder.decode(before) + answer:
        return alone
    raise MechheadsError(
        f"{where}: the answer {answer!r} has no tokens of its own after the prompt's. "
        "Start it with a space, or end the prompt earlier."
    )


def _rows(tokens: _Tokens) -> list[tuple[int, ...]]:
    """The continuations to run: all but the last token of each answer, without duplicates."""
    contexts = sorted({c[:-1] for c in tokens.answers + tokens.wrong}, key=len, reverse=True)
    rows: list[tuple[int, ...]] = []
    for context in contexts:
        if not any(row[: len(context)] == context for row in rows):
            rows.append(context)
    return rows


def _batch(chunk: list[tuple[int, _Tokens]]) -> Batch:
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
