"""Speedups, measured side by side in one run on models with random weights.

The prompts are random words. TransformerLens's loop and ours do the same work, the effect of every
head on the logit difference of the same pairs, and must agree.
"""

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.engine import costs
from mechheads.engine.generate import generate
from mechheads.engine.head_subsets import measure_subsets, nested
from mechheads.metrics.token import METRICS, score
from mechheads.models.backends.products import linear
from mechheads.models.devices import with_threads
from mechheads.models.model import Model, encoder_of, shape_of
from mechheads.models.reference import generate_loop, head_loop, mask_loop
from mechheads.models.untrained import SHAPES, random_model
from mechheads.progress import say
from mechheads.prompts import Pair, Prompts
from mechheads.prompts.batches import batches
from mechheads.scoring.activation_patching import patch
from mechheads.scoring.attribution_patching import attribution
from mechheads.scoring.gate_fitting import FitSettings, fit_gates

# Shapes small enough to fit gates ten times in seconds.
GATED = ("mini",)


@dataclass(frozen=True)
class Timing:
    """One comparison: seconds for theirs and ours, and how much the numbers differ.

    `floor` is the time ours would take if it did only the necessary operations, at the rate of a
    large matrix product on the same threads.
    """

    shape: str
    what: str
    threads: int
    theirs: float
    ours: float
    floor: float
    difference: float

    @property
    def ratio(self) -> float:
        """How many times faster ours is."""
        return self.theirs / self.ours


def tokenizer_of_words(size: int) -> Any:
    """A tokenizer whose tokens are the words w0, w1, ..."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.WordLevel({f"w{i}": i for i in range(size)}, unk_token="w0"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="w0", eos_token="w0", unk_token="w0", pad_token="w0"
    )


def random_prompts(n: int, length: int, first: int, vocab: int) -> Prompts:
    """Pairs of random words that differ from position `first` on, counting the BOS token."""
    rng = random.Random(0)
    pairs = []
    for _ in range(n):
        clean = rng.sample(range(1, vocab), length + 1)
        corrupt = clean[: first - 1] + rng.sample(range(1, vocab), length - first)
        text = [" ".join(f"w{i}" for i in ids) for ids in (clean[: length - 1], corrupt)]
        answers = [f" w{i}" for i in clean[length - 1 :]]
        pairs.append(Pair(text[0], text[1], (answers[0],), (answers[1],)))
    return Prompts("random words", "logit_diff", tuple(pairs))


def compare(
    shape: str,
    threads: int,
    firsts: Sequence[int],
    *,
    rows: int = 16,
    length: int = 16,
    loops: int = 24,
    backend: str | None = None,
    quiet: bool = False,
) -> Iterator[Timing]:
    """Time all heads by TransformerLens's loop and `patch`; curves, attribution, answers, gating.

    The loop runs the whole model for every head or point, always in the same time, so it is timed
    on `loops` of them (0: all), evenly spaced, and its time is scaled up.
    """
    words = tokenizer_of_words(SHAPES[shape]["d_vocab"])
    model = random_model(words, backend, **SHAPES[shape])
    layers, heads = shape_of(model).grid
    cells = [(i, h) for i in range(layers) for h in range(heads)]
    with with_threads(threads):
        every = [
            random_prompts(rows, length, first, shape_of(model).vocabulary) for first in firsts
        ]
        some = _spread(cells, loops)
        _loop(model, every[0], cells[:1])  # a model's first call is slower
        for first, prompts in zip(firsts, every, strict=True):
            say(f"{shape}, {threads} threads: heads, differing from position {first} ...", quiet)
            wanted, loop = _timed(lambda p=prompts: _loop(model, p, some))
            effects, ours = _timed(lambda p=prompts: patch(model, p, quiet=True))
            mine = torch.stack([effects.scores[cell] for cell in some])
            work = costs.needed(costs.sizes_of(model), rows, length, first)
            yield Timing(
                shape,
                f"patch, differing from position {first} of {length}",
                threads,
                loop * len(cells) / len(some),
                ours,
                work / _rate(),
                float((mine - wanted).abs().max() / wanted.abs().max()),
            )
        say(f"{shape}, {threads} threads: curve, attribution, answers ...", quiet)
        yield _curve(model, shape, threads, every[-1], cells, loops)
        yield _attribution(model, shape, threads, every[0])
        yield _answers(model, shape, threads, every[0])
        if shape in GATED:
            say(f"{shape}, {threads} threads: gating ...", quiet)
            yield _gating(model, shape, threads, every[0])


def _spread(cells: Sequence[Any], n: int) -> list[Any]:
    """n evenly spaced cells, or all."""
    if n == 0 or n >= len(cells):
        return list(cells)
    return [cells[i * len(cells) // n] for i in range(n)]


def _curve(
    model: Model,
    shape: str,
    threads: int,
    prompts: Prompts,
    cells: Sequence[tuple[int, int]],
    loops: int,
) -> Timing:
    """Keep the first k heads of a random ranking, for every k: one full pass each, and ours."""
    ranking = random.Random(0).sample(list(cells), len(cells))
    keep = nested(ranking, *shape_of(model).grid)
    some = _spread(range(len(keep)), loops)
    (batch,) = batches(encoder_of(model), prompts)

    def metric(logits: Tensor) -> Tensor:
        return METRICS["logit_diff"](score(logits[:, -1:], batch)).mean()

    wanted, loop = _timed(lambda: mask_loop(model, batch.clean, batch.corrupt, metric, keep[some]))
    mine, ours = _timed(lambda: measure_subsets(model, prompts, keep, quiet=True).mean(1))
    what = f"curve of {len(keep)} points, against a pass each"
    difference = float((mine[some] - wanted).abs().max() / wanted.abs().max())
    return Timing(shape, what, threads, loop * len(keep) / len(some), ours, math.nan, difference)


def _attribution(model: Model, shape: str, threads: int, prompts: Prompts) -> Timing:
    """All heads by attribution, against four forward passes of the model."""
    tokens = next(iter(batches(encoder_of(model), prompts))).clean
    with torch.inference_mode():
        _, four = _timed(lambda: [model(tokens) for _ in range(4)])
    _, ours = _timed(lambda: attribution(model, prompts, quiet=True))
    what = "attribution, against 4 forward passes"
    return Timing(shape, what, threads, four, ours, math.nan, math.nan)


def _answers(model: Model, shape: str, threads: int, prompts: Prompts) -> Timing:
    """Greedy decoding of 16 tokens: TransformerLens one by one, ours all at once with a cache.

    Prompts have three lengths. The difference is the fraction of answers whose text differs.
    """
    texts = ["Then " * (i % 3) + pair.clean for i, pair in enumerate(prompts.pairs)]
    keep = torch.ones(1, *shape_of(model).grid)
    some = _spread(texts, 4)
    theirs, loop = _timed(lambda: generate_loop(model, some, 16))
    ours, seconds = _timed(
        lambda: generate(model, texts, keep, max_tokens=16, stop=(), quiet=True)[0]
    )
    mine = dict(zip(texts, ours, strict=True))
    wrong = sum(mine[text].split() != said.split() for text, said in zip(some, theirs, strict=True))
    what = "answers of 16 tokens, against one by one"
    scaled = loop * len(texts) / len(some)
    return Timing(shape, what, threads, scaled, seconds, math.nan, wrong / len(some))


def _gating(model: Model, shape: str, threads: int, prompts: Prompts) -> Timing:
    """Gates of ten seeds, one by one and together; the difference is the largest of any gate.

    There are enough updates that the setup of each fit hardly counts.
    """
    common: dict[str, Any] = {"updates": 60, "batch": 8}

    def gates(settings: FitSettings) -> Tensor:
        found = fit_gates(model, prompts, settings, quiet=True)
        return torch.stack([found.free, found.plus, found.minus])

    alone, one = _timed(
        lambda: torch.cat(
            [gates(FitSettings(seeds=1, first=i, **common)) for i in range(10)], dim=1
        )
    )
    together, ours = _timed(lambda: gates(FitSettings(seeds=10, **common)))
    difference = float((together - alone).abs().max())
    return Timing(
        shape, "gating, 10 seeds, against one by one", threads, one, ours, math.nan, difference
    )


@torch.inference_mode()
def _loop(
    model: Model, prompts: Prompts, cells: Sequence[tuple[int, int]]
) -> Float[Tensor, " head"]:
    (batch,) = batches(encoder_of(model), prompts)

    def metric(logits: Tensor) -> Tensor:
        return METRICS["logit_diff"](score(logits[:, -1:], batch)).mean()

    clean = metric(model(batch.clean))
    return clean - head_loop(model, batch.clean, batch.corrupt, metric, cells)


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    return work(), time.perf_counter() - start


def _rate() -> float:
    """Floating-point operations per second of a large matrix product, as the engine computes it."""
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    _timed(lambda: linear(a, b, None))
    _, seconds = _timed(lambda: [linear(a, b, None) for _ in range(8)])
    return 8 * 2 * 1024**3 / seconds
