"""Token rows to train on: the tasks' prompts with their answers, or plain text.

1. Rows begin with the BOS token if the model gets one before every prompt.
2. Answer tokens have weight 1, including those of solved examples before the question; the other
   tokens of a prompt have weight 0.1. In plain text every token has weight 1.
3. Rows of similar length are grouped and padded at the end, where nothing attends to the padding.
"""

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechheads.errors import MechheadsError
from mechheads.prompts import Pair, Share, draw

from . import texts


@dataclass(frozen=True)
class Rows:
    """Token rows padded at the end, the loss weight of each token, and which are the answer.

    `positions` are the tokens' positions, if they are not 0, 1, 2 and so on.
    """

    tokens: Int[Tensor, "row pos"]
    weights: Float[Tensor, "row pos"]
    asked: Bool[Tensor, "row pos"]
    positions: Int[Tensor, "row pos"] | None = None

    @property
    def queries(self) -> Bool[Tensor, "row pos"]:
        """The positions from which a token is predicted."""
        nothing = torch.zeros_like(self.weights[:, :1])
        return torch.cat([self.weights[:, 1:], nothing], dim=1) > 0


# The rows a step trains on; the same for the same step, on every machine.
Batches = Callable[[int], list[Rows]]


@dataclass(frozen=True)
class TrainingData:
    """Training rows, and held-out rows to evaluate on."""

    batches: Batches
    tests: list[Rows]


def task_data(
    tokenizer: Any,
    shares: Mapping[str, Share],
    tests: Mapping[str, Sequence[Pair]],
    seed: int,
    prepend: bool = True,
) -> TrainingData:
    """The tasks' training split, and pairs of their test split."""
    asked = [(pair.clean, pair.answers[-1]) for pairs in tests.values() for pair in pairs]
    batches = task_batches(tokenizer, shares, seed, prepend=prepend)
    return TrainingData(batches, rows(tokenizer, asked, prepend=prepend))


def text_data(
    tokenizer: Any, place: Path, length: int, batch: int, seed: int, prepend: bool = True
) -> TrainingData:
    """Sequences of a text; the last twentieth is held out if there are at least twenty."""
    sequences = read_sequences(place, tokenizer, length, prepend)
    held = len(sequences) // 20
    kept, tests = sequences[: len(sequences) - held], sequences[-held:] if held else sequences
    return TrainingData(
        text_batches(kept, batch, seed), [text_rows(part) for part in tests.split(16)]
    )


def task_batches(
    tokenizer: Any,
    shares: Mapping[str, Share],
    seed: int | str,
    *,
    repeated: Sequence[str] = (),
    n_repeated: int = 0,
    n_first: int = 0,
    context: int = 0,
    prepend: bool = True,
) -> Batches:
    """Prompts from every task's training split, according to its share, and repeated words.

    The first `n_first` steps have only repeated words, four times as many. They are placed anywhere
    in a context of `context` tokens.
    """
    pool = [tokenizer.encode(f" {word}", add_special_tokens=False)[0] for word in repeated]

    def at_step(step: int) -> list[Rows]:
        rng = random.Random(f"{seed}/{step}")
        if step < n_first:
            return echoes(pool, rng, tokenizer.bos_token_id, 4 * n_repeated, context)
        drawn = [example for share in shares.values() for example in examples(share, rng)]
        parts = rows(tokenizer, drawn, prepend=prepend)
        return parts + echoes(pool, rng, tokenizer.bos_token_id, n_repeated, context)

    return at_step


def echoes(
    pool: Sequence[int], rng: random.Random, first: int, n: int, context: int = 0
) -> list[Rows]:
    """Repeated random words: half of the rows in the same order, half as pairs in a new order.

    Between the words of a pair are up to three words that all pairs of the row have in common.
    Whatever is predictable the second time has weight 1. This teaches induction, looking up what
    followed a word before, which most tasks build on. Long rows would teach it much later, so rows
    are short, but all tokens except the first are placed anywhere in the context.
    """
    made: list[list[tuple[int, float, int]]] = []
    for i in range(n):
        if i % 2:
            between = rng.sample(pool, rng.randint(0, 3))
            drawn = rng.sample(pool, 2 * rng.randint(2, 4))
            pairs = list(zip(drawn[::2], drawn[1::2], strict=True))
            again = rng.sample(pairs, len(pairs))
            row = [(first, 0.0, 0)]
            for weight, turn in ((0.0, pairs), (1.0, again)):
                for key, value in turn:
                    row += [(word, 0.0, 0) for word in (key, *between)] + [(value, weight, 0)]
        else:
            drawn = rng.choices(pool, k=rng.randint(4, 10))
            once = [(word, 0.0, 0) for word in (first, *drawn, drawn[0])]
            row = once + [(word, 1.0, 0) for word in drawn[1:]]
        made.append(row)
    parts = [_pad(part) for part in _parts(sorted(made, key=len), 2)] if made else []
    return [_anywhere(part, rng, context) for part in parts]


def _anywhere(part: Rows, rng: random.Random, context: int) -> Rows:
    """The rows, each shifted by a random distance after its first token."""
    rows, n = part.tokens.shape
    far = torch.tensor([rng.randint(0, max(0, context - n)) for _ in range(rows)])
    positions = torch.arange(n) + far[:, None]
    positions[:, 0] = 0
    return replace(part, positions=positions)


def text_batches(sequences: Int[Tensor, "row pos"], batch: int, seed: int) -> Batches:
    """Sequences of a text drawn at random, without repeats within a step."""

    def at_step(step: int) -> list[Rows]:
        drawn = random.Random(f"{seed}/{step}").sample(
            range(len(sequences)), min(batch, len(sequences))
        )
        return [text_rows(sequences[drawn])]

    return at_step


def examples(share: Share, rng: random.Random) -> list[tuple[str, str]]:
    """Prompts from the training split, each with an answer."""
    drawn = []
    for _ in range(share.count):
        (pair,) = draw(rng.choice(share.makers), 1, rng, "train")
        if rng.random() < share.undecided:
            drawn.append((pair.corrupt, rng.choice(_introduced(pair))))
        else:
            drawn.append((pair.clean, rng.choice(pair.answers)))
    return drawn


def _introduced(pair: Pair) -> list[str]:
    """The first two words in which the corrupted prompt differs from the clean one."""
    words = zip(pair.clean.split(), pair.corrupt.split(), strict=True)
    return [f" {b.strip('.,')}" for a, b in words if a != b][:2]


def rows(
    tokenizer: Any, drawn: Sequence[tuple[str, str]], groups: int = 9, prepend: bool = True
) -> list[Rows]:
    """The examples as token rows, in groups of similar length."""
    first = [(tokenizer.bos_token_id, 0.0, 0)] if prepend else []
    encoded = sorted((first + _encode(tokenizer, *example) for example in drawn), key=len)
    return [_pad(part) for part in _parts(encoded, groups)]


def thinned(
    weights: Float[Tensor, "row pos"],
) -> tuple[Bool[Tensor, "row pos"], Float[Tensor, " kept"]]:
    """Which tokens to predict, and their weights; a sample of 30 % stands for all light tokens."""
    light = (weights > 0) & (weights < 1)
    kept = (weights >= 1) | (light & (torch.rand_like(weights) < 0.3))
    return kept, weights[kept] / torch.where(light[kept], 0.3, 1.0)


def _pad(part: Sequence[Sequence[tuple[int, float, int]]]) -> Rows:
    """Rows of (token, weight, is answer) as padded tensors."""
    tokens = torch.zeros(len(part), max(map(len, part))).long()
    weights, asked = torch.zeros(tokens.shape), torch.zeros(tokens.shape).bool()
    for i, row in enumerate(part):
        ids, weight, answer = zip(*row, strict=True)
        tokens[i, : len(row)] = torch.tensor(ids)
        weights[i, : len(row)] = torch.tensor(weight)
        asked[i, : len(row)] = torch.tensor(answer).bool()
    weights[:, 0] = 0.0
    return Rows(tokens, weights, asked)


def text_rows(sequences: Int[Tensor, "row pos"]) -> Rows:
    """Sequences of equal length in which every token but the first is predicted."""
    weights = torch.ones(sequences.shape)
    weights[:, 0] = 0.0
    return Rows(sequences, weights, torch.zeros_like(sequences).bool())


def read_sequences(
    place: Path, tokenizer: Any, length: int, prepend: bool = True
) -> Int[Tensor, "row pos"]:
    """A text file, or all .txt and .md files of a folder, cut into sequences of `length` tokens."""
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    ids: list[int] = []
    for file in texts.text_files(place):
        ids += [*tokenizer.encode(texts.read(file), add_special_tokens=False, verbose=False), *end]
    own = length - prepend
    count = len(ids) // own
    if count == 0:
        raise MechheadsError(
            f"{place} has {len(ids)} tokens, less than one sequence of {length}. Give more text, "
            "or a smaller --length."
        )
    cut = torch.tensor(ids[: count * own]).view(count, own)
    first = torch.full((count, 1), tokenizer.bos_token_id if prepend else 0)
    return torch.cat([first, cut], dim=1) if prepend else cut


def _encode(tokenizer: Any, prompt: str, answer: str) -> list[tuple[int, float, int]]:
    """Tokens, their weights (1 for answers, otherwise 0.1), and 1 for those of the final answer."""
    whole = tokenizer(prompt, add_special_tokens=False, return_offsets_mapping=True)
    spans = _solved(prompt)
    before = [
        (token, 1.0 if any(a <= begin and end <= b for a, b in spans) else 0.1, 0)
        for token, (begin, end) in zip(whole["input_ids"], whole["offset_mapping"], strict=True)
    ]
    after = [(token, 1.0, 1) for token in tokenizer.encode(answer, add_special_tokens=False)]
    return [*before, *after]


def _solved(prompt: str) -> list[tuple[int, int]]:
    """Spans of answers inside a prompt: of solved examples, and arguments from the second on."""
    answers = list(re.finditer(r"\nAnswer:[^\n]*?( [^ \n]+)\n", prompt))
    arguments = list(re.finditer(r"\n    :param( \w+):", prompt))[1:]
    return [found.span(1) for found in (*answers, *arguments)]


def _parts(encoded: list, groups: int) -> list[list]:
    """The sorted rows in groups of about equal total length, which keeps padding low."""
    total = sum(map(len, encoded))
    parts: list[list] = [[]]
    used = 0
    for row in encoded:
        if used > total * len(parts) / groups:
            parts.append([])
        parts[-1].append(row)
        used += len(row)
    return parts
