"""Exact activation patching: patch one head at a time and rerun everything after it.

Noising runs the clean prompt with the head's z replaced and measures how much of the metric is
lost; denoising runs the corrupted prompt with the head's z from the clean run and measures how much
is restored. Both are positive for a head that helps.

What replaces z:
- `corrupt`: z from the other run (the default);
- `zero`: zeros; `mean`: the head's mean over all positions of the corrupted prompts;
  `position_mean`: its mean at that position over the corrupted prompts of that length.
Or only one part of the head comes from the other run, and z is recomputed from it:
- `q`, `k`, `v`, `pattern`. For `k` and `v`, heads that share keys and values change together and
  have a single effect: the result has a column per key-value head.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads import metrics
from mechheads.engine.cached_run import CachedRun, measure
from mechheads.engine.interventions import Replace
from mechheads.engine.paired_runs import baselines, check_patching, paired_runs
from mechheads.engine.select import budget_for, engine_for
from mechheads.errors import MechheadsError
from mechheads.heads import check_heads
from mechheads.metrics import Metric
from mechheads.models.model import Model, Shape, encoder_of, model_name, shape_of
from mechheads.progress import bar
from mechheads.prompts import Prompts
from mechheads.prompts.batches import batches

from .batching import BatchEffects, join_batches, score_batches
from .effects import HeadEffects, PositionEffects


@torch.inference_mode()
def patch(
    model: Model,
    prompts: Prompts,
    metric: str | None = None,
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
    wanted = metrics.find(metric or prompts.metric)
    check_patching(direction, replacement)
    shape = shape_of(model)
    columns = _columns(shape, replacement)
    cells = _chosen(heads, shape.layers, columns)
    settings = {"direction": direction, "replacement": replacement}
    parts = _patched(
        model, prompts, wanted, cells, columns, None, budget=budget, quiet=quiet, **settings
    )
    unit = "head" if columns == shape.heads else "kv_head"
    return score_batches(model, prompts, "patch", wanted, parts, settings, unit)


@torch.inference_mode()
def patch_positions(
    model: Model,
    prompts: Prompts,
    metric: str | None = None,
    *,
    direction: str = "noising",
    replacement: str = "corrupt",
    budget: int | None = None,
    quiet: bool = False,
) -> PositionEffects:
    """Exact activation patching of one head at one position at a time.

    Args:
        model: what `mechheads.load` returns
        prompts: what `tasks.make` returns; all must have the same number of tokens
        metric: a name in `mechheads.METRICS`; default: the task's own
        direction: "noising" patches the replacement into the clean run, "denoising" patches the
            clean run's output into the corrupted run
        replacement: "corrupt", "zero", "mean" or "position_mean"
        budget: tokens per pass, which bounds memory; default: what suits the device
        quiet: show no progress bar

    Returns:
        PositionEffects: a value per prompt, layer, head and position. Positive means that the head
        helps there. Costs a partial forward pass per head and position.

    >>> import mechheads, tasks
    >>> model = mechheads.load("mini")
    >>> prompts = tasks.make("greater_than", model, n=4)
    >>> mechheads.patch_positions(model, prompts, quiet=True).values.shape
    torch.Size([4, 4, 8, 13])
    """
    wanted = metrics.find(metric or prompts.metric)
    check_patching(direction, replacement)
    shape = shape_of(model)
    columns = _columns(shape, replacement)
    cells = _chosen(None, shape.layers, columns)
    lengths = {batch.length for batch in batches(encoder_of(model), prompts)}
    if len(lengths) > 1:
        raise MechheadsError(
            f"The prompts of {prompts.task} have {min(lengths)} to {max(lengths)} tokens, so their "
            "positions do not line up. Use prompts from a single template."
        )
    (n,) = lengths
    settings = {"direction": direction, "replacement": replacement}
    parts = _patched(
        model, prompts, wanted, cells, columns, n, budget=budget, quiet=quiet, **settings
    )
    values, clean, corrupt = join_batches(len(prompts), parts)
    return PositionEffects(
        prompts.task, model_name(model), wanted.name, values, clean, corrupt, settings
    )


def _patched(
    model: Model,
    prompts: Prompts,
    metric: Metric,
    cells: Sequence[tuple[int, int]],
    columns: int,
    positions: int | None,
    *,
    direction: str,
    replacement: str,
    budget: int | None,
    quiet: bool,
) -> Iterator[BatchEffects]:
    """Patch each cell alone: at each position in turn, or at all positions at once."""
    engine, budget, shape = engine_for(model), budget_for(model, budget), shape_of(model)
    title = "Heads" if positions is None else "Heads x positions"
    with bar(len(cells) * (positions or 1), title, quiet) as progress:
        for sides in paired_runs(model, engine, prompts, direction, replacement, budget):
            clean, corrupt = baselines(model, engine, sides, metric)
            first, count = sides.base.first, len(sides.batch.pairs)
            values = torch.zeros(count, shape.layers, columns, positions or 1)
            for position in [None] if positions is None else range(first, positions):
                base = sides.base if position is None else replace(sides.base, first=position)
                for some in _passes(cells, base, budget):
                    at = None if position is None else torch.full((len(some),), position)
                    change = Replace(_keep(shape, some, columns), sides.source, at)
                    after = measure(model, engine.rerun(base, change), sides.batch, metric)
                    lost = clean - after if direction == "noising" else after - corrupt
                    for (layer, column), value in zip(some, lost, strict=True):
                        values[:, layer, column, position or 0] = value
                    progress.update(len(some) * count / len(prompts))
            found = values if positions is not None else values[..., 0]
            yield BatchEffects(sides.batch.pairs, found, clean, corrupt)


def _columns(shape: Shape, replacement: str) -> int:
    """The number of heads to patch separately: key-value heads for keys and values."""
    return shape.kv_heads if replacement in ("k", "v") else shape.heads


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
    """Masks that replace one (layer, column) per variant; a column may span several heads."""
    keep = torch.ones(len(cells), *shape.grid)
    size = shape.heads // columns
    for i, (layer, column) in enumerate(cells):
        keep[i, layer, column * size : (column + 1) * size] = 0.0
    return keep
