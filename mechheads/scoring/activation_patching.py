"""Exact activation patching: patch one head at a time and rerun everything after it.

Noising runs the clean prompt with the head's z replaced and measures how much of the metric is
lost; denoising runs the corrupted prompt with the head's z from the clean run and measures how much
is restored. Both are positive for a head that helps.

What replaces z:
- `corrupt`: z from the other run (the default);
- `zero`: zeros; `mean`: the head's mean over all positions of the corrupted prompts;
  `position_mean`: its mean at that position over the corrupted prompts of that length. Both are
  over the prompts' own tokens; at the tokens of an answer, which follow the prompt,
  `position_mean` is that of the prompt's last position.
Or only one part of the head comes from the other run, and z is recomputed from it:
- `q`, `k`, `v`, `pattern`. For `k` and `v`, heads that share keys and values change together and
  have a single effect: the result has a column per key-value head.

`patch_positions` patches at one place at a time: a position, or a span of every prompt, whose
positions are patched together. Places are parts of the prompt; answer tokens after it never change.
A key or value that is replaced at a place changes z at all queries from there on, as in
TransformerLens; everything else changes z at the place alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mechheads import metrics
from mechheads.engine.cached_run import CachedRun, measure
from mechheads.engine.interventions import Replace
from mechheads.engine.paired_runs import (
    PairedRun,
    SourceZ,
    baselines,
    check_patching,
    paired_runs,
)
from mechheads.engine.select import budget_for, engine_for
from mechheads.errors import MechheadsError, unknown
from mechheads.heads import check_heads
from mechheads.metrics import Metric, MetricLike
from mechheads.models.hooks import attention_parts
from mechheads.models.model import Model, Shape, encoder_of, model_name, shape_of
from mechheads.progress import bar
from mechheads.prompts import Prompts
from mechheads.prompts.batches import Batch
from mechheads.prompts.encoder import Encoder
from mechheads.prompts.positions import chosen_spans, common_spans, span_positions
from mechheads.prompts.tokens import tokenize

from .batching import BatchEffects, join_batches, score_batches
from .effects import HeadEffects, PositionEffects

BY = ("position", "span")
SHARED = ("k", "v")  # the parts that all later queries of a head read


@torch.inference_mode()
def patch(
    model: Model,
    prompts: Prompts,
    metric: MetricLike | None = None,
    *,
    direction: str = "noising",
    replacement: str = "corrupt",
    heads: Sequence[tuple[int, int]] | None = None,
    budget: int | None = None,
    quiet: bool = False,
) -> HeadEffects:
    """Metric lost (noising) or restored (denoising) by patching each head alone, at all positions.

    Positive: the head helps. One partial forward pass per head. With `heads`, only those are
    patched, and the other effects are 0.
    """
    wanted = metrics.choose(metric, prompts)
    check_patching(direction, replacement)
    shape = shape_of(model)
    columns = _columns(shape, replacement)
    cells = _chosen(heads, shape.layers, columns)
    settings = {"direction": direction, "replacement": replacement}
    parts = _patched(
        model, prompts, wanted, cells, columns, None, budget=budget, quiet=quiet, **settings
    )
    return score_batches(model, prompts, "patch", wanted, parts, settings, _unit(shape, columns))


@torch.inference_mode()
def patch_positions(
    model: Model,
    prompts: Prompts,
    metric: MetricLike | None = None,
    *,
    by: str | None = None,
    spans: str | Sequence[str] | None = None,
    direction: str = "noising",
    replacement: str = "corrupt",
    budget: int | None = None,
    quiet: bool = False,
) -> PositionEffects:
    """Exact activation patching of one head at one position or span at a time.

    Args:
        model: what `mechheads.load` returns
        prompts: what `tasks.make` returns
        metric: a name in `mechheads.METRICS`, or your own function; default: the task's own
        by: "position" for every position of prompts that have the same number of tokens, or "span"
            for the parts that the task names (IOI: IO, S1, S1+1, S2, END), whatever the lengths;
            default: "position" if the lengths are equal, else "span"
        spans: names of spans to patch; default: all that every prompt has
        direction: "noising" patches the replacement into the clean run, "denoising" patches the
            clean run's output into the corrupted run
        replacement: "corrupt", "zero", "mean" or "position_mean", or "q", "k", "v" or "pattern"
        budget: tokens per pass, which bounds memory; default: chosen for the device
        quiet: show no progress bar

    Returns:
        PositionEffects: a value per prompt, layer, head and position or span; `by_layer` is that of
        all heads of a layer together. Positive means that the head helps there. Costs a partial
        forward pass per head and position or span.

    >>> import mechheads, tasks
    >>> model = mechheads.load("mini")
    >>> prompts = tasks.make("greater_than", model, n=4)
    >>> mechheads.patch_positions(model, prompts, quiet=True).values.shape
    torch.Size([4, 4, 8, 13])
    >>> found = mechheads.patch_positions(model, tasks.make("ioi", model, n=4), quiet=True)
    >>> found.positions
    ('IO', 'S1', 'S1+1', 'S2', 'END')
    """
    wanted = metrics.choose(metric, prompts)
    check_patching(direction, replacement)
    shape = shape_of(model)
    columns = _columns(shape, replacement)
    places = _places(encoder_of(model), prompts, by, spans)
    # One more column stands for all heads of the layer.
    cells = _chosen(None, shape.layers, columns + 1)
    settings = {"direction": direction, "replacement": replacement}
    parts = _patched(
        model, prompts, wanted, cells, columns, places, budget=budget, quiet=quiet, **settings
    )
    values, clean, corrupt = join_batches(len(prompts), parts)
    return PositionEffects(
        prompts.task,
        model_name(model),
        wanted.name,
        places.by,
        places.names,
        values[:, :, :columns].contiguous(),
        values[:, :, columns].contiguous(),
        clean,
        corrupt,
        settings,
        _unit(shape, columns),
    )


@dataclass(frozen=True)
class Places:
    """Where to patch: the names of the places, and the positions of each in every prompt."""

    by: str
    names: tuple[str, ...]
    positions: Sequence[Sequence[tuple[int, ...]]]

    def mask(self, place: int, batch: Batch) -> Bool[Tensor, "row pos"]:
        """Where a place is in the rows of a batch."""
        here = torch.zeros(batch.clean.shape, dtype=torch.bool)
        for row, pair in enumerate(batch.pairs[batch.pair_of].tolist()):
            here[row, list(self.positions[pair][place])] = True
        return here


def _places(
    encoder: Encoder, prompts: Prompts, by: str | None, spans: str | Sequence[str] | None
) -> Places:
    lengths = {len(tokens.clean) for tokens in tokenize(encoder, prompts)}
    if by not in (None, *BY):
        raise unknown("by", by, BY)
    if by == "position" and spans is not None:
        raise MechheadsError('spans are patched by="span", but by is "position". Leave one out.')
    uneven = len(lengths) > 1
    if by == "span" or spans is not None or (not by and uneven and len(common_spans(prompts)) > 1):
        names = chosen_spans(prompts, spans)
        return Places("span", tuple(names), span_positions(encoder, prompts, names))
    if uneven:
        raise MechheadsError(
            f"The prompts of {prompts.task} have {min(lengths)} to {max(lengths)} tokens, so their "
            "positions do not line up. Use prompts from a single template, or mark spans that all "
            'of them have and patch by="span".'
        )
    (n,) = lengths
    return Places("position", tuple(map(str, range(n))), [[(i,) for i in range(n)]] * len(prompts))


def _patched(
    model: Model,
    prompts: Prompts,
    metric: Metric,
    cells: Sequence[tuple[int, int]],
    columns: int,
    places: Places | None,
    *,
    direction: str,
    replacement: str,
    budget: int | None,
    quiet: bool,
) -> Iterator[BatchEffects]:
    """Patch each cell alone: at each place in turn, or at all positions at once."""
    engine, budget, shape = engine_for(model), budget_for(model, budget), shape_of(model)
    title = "Heads" if places is None else f"Heads x {places.by}s"
    times = 1 if places is None else len(places.names)
    with bar(len(cells) * times, title, quiet) as progress:
        for sides in paired_runs(model, engine, prompts, direction, replacement, budget, metric):
            clean, corrupt = baselines(model, engine, sides, metric)
            share, width = len(sides.batch.pairs) / len(prompts), columns + (places is not None)
            values = torch.zeros(len(sides.batch.pairs), shape.layers, width, times)
            for place, (base, source, at) in enumerate(_starts(model, sides, replacement, places)):
                if base is None:
                    progress.update(len(cells) * share)
                    continue
                # The last layer is read at the end alone: elsewhere its heads change nothing.
                read = at is None or bool(at[:, :, -sides.batch.steps :].any())
                able = [cell for cell in cells if read or cell[0] + 1 < shape.layers]
                progress.update((len(cells) - len(able)) * share)
                for some in _passes(able, base, budget):
                    change = Replace(_keep(shape, some, columns), source, at)
                    after = measure(model, engine.rerun(base, change), sides.batch, metric)
                    lost = clean - after if direction == "noising" else after - corrupt
                    for (layer, column), value in zip(some, lost, strict=True):
                        values[:, layer, column, place] = value
                    progress.update(len(some) * share)
            found = values if places is not None else values[..., 0]
            yield BatchEffects(sides.batch.pairs, found, clean, corrupt)


def _starts(
    model: Model, sides: PairedRun, replacement: str, places: Places | None
) -> Iterator[tuple[CachedRun | None, SourceZ, Bool[Tensor, "1 row pos"] | None]]:
    """For every place, the run to start from, what replaces its z, and where.

    There is no run for a place at which both runs are still the same.
    """
    if places is None:
        yield sides.base, sides.source, None
        return
    parts = _both_parts(model, sides, replacement) if replacement in SHARED else []
    for place in range(len(places.names)):
        here = places.mask(place, sides.batch)
        found = here.any(0).nonzero().flatten().tolist()
        if found[-1] < sides.base.first:
            yield None, None, None
            continue
        base = replace(sides.base, first=max(sides.base.first, found[0]))
        if parts:
            yield base, _part_at(model, base, replacement, parts, here), None
        else:
            yield base, sides.source, here[None]


def _both_parts(model: Model, sides: PairedRun, part: str) -> list[tuple[Tensor, Tensor]]:
    """Every layer's keys or values in the run that is changed, and in the other one."""
    other = sides.corrupt if sides.base is sides.clean else sides.clean
    return [
        (attention_parts(model, i, ours)[part], attention_parts(model, i, theirs)[part])
        for i, (ours, theirs) in enumerate(zip(sides.base.entering, other.entering, strict=True))
    ]


def _part_at(
    model: Model,
    base: CachedRun,
    part: str,
    parts: Sequence[tuple[Tensor, Tensor]],
    here: Bool[Tensor, "row pos"],
) -> SourceZ:
    """Every layer's z when its keys or values come from the other run at one place."""
    found = []
    for layer, (ours, theirs) in enumerate(parts):
        mixed = torch.where(here[:, :, None, None].to(ours.device), theirs, ours)
        found.append(attention_parts(model, layer, base.entering[layer], {part: mixed})["z"])
    return found


def _columns(shape: Shape, replacement: str) -> int:
    """The number of heads to patch separately: key-value heads for keys and values."""
    return shape.kv_heads if replacement in SHARED else shape.heads


def _unit(shape: Shape, columns: int) -> str:
    return "head" if columns == shape.heads else "kv_head"


def _chosen(
    heads: Sequence[tuple[int, int]] | None, layers: int, columns: int
) -> list[tuple[int, int]]:
    if heads is None:
        return [(layer, column) for layer in range(layers) for column in range(columns)]
    check_heads(heads, layers, columns)
    return sorted(set(heads))


def _passes(
    cells: Sequence[tuple[int, int]], base: CachedRun, budget: int
) -> Iterator[list[tuple[int, int]]]:
    """Groups of heads in the same layer, as large as the budget allows."""
    rows, n = base.shape
    size = max(1, budget // (rows * (n - base.first)))
    for layer in sorted({layer for layer, _ in cells}):
        here = [cell for cell in cells if cell[0] == layer]
        for i in range(0, len(here), size):
            yield here[i : i + size]


def _keep(
    shape: Shape, cells: Sequence[tuple[int, int]], columns: int
) -> Float[Tensor, "variant layer head"]:
    """Masks that replace one (layer, column) per variant; a column may have several heads.

    The column after the last one has all of them.
    """
    keep = torch.ones(len(cells), *shape.grid)
    size = shape.heads // columns
    for i, (layer, column) in enumerate(cells):
        heads = slice(column * size, (column + 1) * size) if column < columns else slice(None)
        keep[i, layer, heads] = 0.0
    return keep
