"""How many floating-point operations a measurement takes, and how fast they run here.

1. The matrix products of the blocks and the unembedding are counted, two operations per
   multiply-add, with what a changed run leaves out: layers before the change, positions that are
   the same in both prompts, all but the end of the last layer.
2. `needed` is a lower bound on patching all heads: the work once per head, not the cached runs.
3. `patching` and `subsets` are estimates of whole measurements: cached runs, and changed runs of
   every batch. `measure_speed` times a real changed run; their quotient is seconds.
"""

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from mechheads import metrics
from mechheads.metrics import Metric, MetricLike
from mechheads.models.model import Model, encoder_of, mlp_shape, shape_of
from mechheads.prompts import Prompts
from mechheads.prompts.batches import batches

from .cached_run import measure
from .head_subsets import TOGETHER
from .interventions import Replace
from .paired_runs import paired_runs
from .select import budget_for, engine_for

TIMED, SAMPLE = 256, 4  # tokens of the timed run, about as fast as a large one; its prompts


@dataclass(frozen=True)
class Sizes:
    """What the count depends on."""

    layers: int
    heads: int
    kv_heads: int
    d_model: int
    d_head: int
    d_mlp: int
    gated: bool
    vocab: int

    @property
    def queries(self) -> int:
        """Queries and the output of all heads, per token."""
        return 4 * self.d_model * self.heads * self.d_head

    @property
    def keys(self) -> int:
        """Keys and values, per token."""
        return 4 * self.d_model * self.kv_heads * self.d_head

    @property
    def mlp(self) -> int:
        """The MLP, per token."""
        return (6 if self.gated else 4) * self.d_model * self.d_mlp

    def attention(self, queries: int, keys: int) -> int:
        """Attention scores and weighted sums of values, for all heads."""
        return 4 * queries * keys * self.heads * self.d_head

    def block(self, new: int, n: int) -> int:
        """A layer at `new` positions of a row of n tokens."""
        return new * (self.queries + self.keys + self.mlp) + self.attention(new, n)


@dataclass(frozen=True)
class Load:
    """A batch: its rows, their length, the first position that differs, and how many are read.

    `answers` is how many logits are computed at each position that is read.
    """

    rows: int
    length: int
    first: int
    steps: int = 1
    answers: int = 2


def sizes_of(model: Model) -> Sizes:
    """The sizes of a model."""
    shape, (width, gated) = shape_of(model), mlp_shape(model)
    return Sizes(
        shape.layers,
        shape.heads,
        shape.kv_heads,
        shape.d_model,
        shape.d_head,
        width,
        gated,
        encoder_of(model).vocabulary,
    )


def loads_of(
    model: Model,
    prompts: Prompts,
    metric: MetricLike | None = None,
    *,
    replacement: str = "corrupt",
    budget: int | None = None,
) -> list[Load]:
    """The batches in which the heads of these prompts are patched."""
    wanted = metrics.choose(metric, prompts)
    found = []
    for batch in batches(encoder_of(model), prompts, max_tokens=budget_for(model, budget)):
        answers = 2 if wanted.relative and batch.contrasted else encoder_of(model).vocabulary
        first = 0 if replacement in ("zero", "mean", "position_mean") else batch.first
        found.append(Load(len(batch.clean), batch.length, first, batch.steps, answers))
    return found


def loop(sizes: Sizes, rows: int, n: int) -> int:
    """TransformerLens's loop: a full forward pass with all logits for every head."""
    return sizes.layers * sizes.heads * whole(sizes, [Load(rows, n, 0)])


def whole(sizes: Sizes, loads: Sequence[Load]) -> int:
    """A full forward pass of one side of the prompts, with all logits."""
    logits = 2 * sizes.d_model * sizes.vocab
    return sum(
        load.rows * (sizes.layers * sizes.block(load.length, load.length) + load.length * logits)
        for load in loads
    )


def needed(sizes: Sizes, rows: int, n: int, first: int, steps: int = 1, answers: int = 2) -> int:
    """What must run for every head: everything from its layer and the first changed position on."""
    load = Load(rows, n, first, steps, answers)
    return sizes.heads * sum(changed(sizes, load, layer) for layer in range(sizes.layers))


def changed(sizes: Sizes, load: Load, layer: int) -> int:
    """A run in which one head of the layer changes.

    >>> from mechheads.engine.costs import Load, Sizes, changed
    >>> tiny = Sizes(1, 1, 1, d_model=4, d_head=2, d_mlp=8, gated=False, vocab=10)
    >>> changed(tiny, Load(rows=3, length=5, first=2), 0)  # 3 rows: write, MLP and two logits
    480
    """
    new, n, steps = load.length - load.first, load.length, load.steps
    write = 2 * sizes.d_model * sizes.d_head
    if layer + 1 == sizes.layers:
        total = steps * (write + sizes.mlp)
    else:
        last = steps * (sizes.queries + sizes.mlp) + new * sizes.keys + sizes.attention(steps, n)
        between = (sizes.layers - layer - 2) * sizes.block(new, n)
        total = new * (write + sizes.mlp) + between + last
    return load.rows * (total + 2 * steps * sizes.d_model * load.answers)


def patching(sizes: Sizes, loads: Sequence[Load], heads: float | int | None = None) -> float:
    """Patching so many heads (default: all), anywhere in the model, and both cached runs."""
    every = sizes.layers * sizes.heads
    alone = [load for load in loads for _ in range(sizes.layers)]
    layers = [layer for _ in loads for layer in range(sizes.layers)]
    total = sum(changed(sizes, load, i) for load, i in zip(alone, layers, strict=True))
    return cached(sizes, loads) + total * sizes.heads * (every if heads is None else heads) / every


def cached(sizes: Sizes, loads: Sequence[Load]) -> float:
    """Both cached runs of every batch: all layers, no logits."""
    blocks = (load.rows * sizes.block(load.length, load.length) for load in loads)
    return 2.0 * sizes.layers * sum(blocks)


def curve(sizes: Sizes, loads: Sequence[Load], points: Sequence[int], rankings: int = 1) -> float:
    """Keeping the first k heads of random rankings, for every k in `points`; no cached runs.

    Subsets share a run up to the first layer in which they differ: two whose numbers of heads
    differ by g differ in the first l of L layers with probability 1 - (1 - l / L) ** g.
    """
    gaps = [b - a for a, b in itertools.pairwise(points)]
    total = 0.0
    for layer in range(sizes.layers):
        share = (layer + 1) / sizes.layers
        apart = 1 + rankings * sum(1 - (1 - share) ** gap for gap in gaps)
        for load in loads:
            following = changed(sizes, load, layer + 1) if layer + 1 < sizes.layers else 0
            total += apart * (changed(sizes, load, layer) - following)
    return total


def paths(sizes: Sizes, loads: Sequence[Load]) -> float:
    """The products of edge attribution: each head's change with what each later head reads."""
    senders, readers = sizes.layers * sizes.heads, sizes.layers * (3 * sizes.heads + 1)
    places = sum(load.rows * (load.length - load.first) for load in loads)
    return float(
        places * sizes.d_model * senders * readers
    )  # half of all pairs, two operations each


def subset_budget(model: Model, budget: int | None = None) -> int:
    """Tokens per batch where many subsets of heads share a pass."""
    return max(1, budget_for(model, budget) // TOGETHER)


def timing(sizes: Sizes, loads: Sequence[Load]) -> float:
    """What `measure_speed` takes, at most: two runs of half the layers, and the cached runs."""
    n = max(load.length for load in loads)
    return sizes.layers * sizes.block(n, n) * (TIMED / n + 2 * SAMPLE)


def measure_speed(
    model: Model,
    prompts: Prompts,
    metric: MetricLike | None = None,
    *,
    replacement: str = "corrupt",
    budget: int | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Operations per second of patching heads of the middle layer, on a few of the prompts.

    Two changed runs of about 256 tokens; the first one warms up.
    """
    wanted: Metric = metrics.choose(metric, prompts)
    shape, sizes = shape_of(model), sizes_of(model)
    few = subset_budget(model, budget)
    layer = (shape.layers - 1) // 2
    with torch.inference_mode():
        engine, some = engine_for(model), prompts.first(SAMPLE)
        sides = next(paired_runs(model, engine, some, "noising", replacement, few, wanted))
        rows, n = sides.base.shape
        heads = max(1, min(shape.heads, TIMED // (rows * (n - sides.base.first))))
        keep = torch.ones(heads, *shape.grid)
        keep[range(heads), layer, range(heads)] = 0.0
        for _ in range(2):
            begin = clock()
            end = engine.rerun(sides.base, Replace(keep, sides.source))
            measure(model, end, sides.batch, wanted)
            if end.device.type == "cuda":
                torch.cuda.synchronize(end.device)
            seconds = clock() - begin
    answers = 2 if wanted.relative and sides.batch.contrasted else sizes.vocab
    load = Load(rows, n, sides.base.first, sides.batch.steps, answers)
    return heads * changed(sizes, load, layer) / max(seconds, 1e-6)
