"""Exact activation patching: one head at a time is changed, and everything after it runs again.

Noising runs the clean prompt with the head's z replaced, and says how much of the metric is lost;
denoising runs the corrupted prompt with the head's z of the clean run, and says how much comes
back. Both are positive for a head that helps.

What replaces z:
- `corrupt`: the other run's z (the default);
- `zero`: nothing; `mean`: the head's mean over the corrupted prompts and all their positions;
  `position_mean`: its mean at that position over the corrupted prompts of that length.
Or only a part of the head is taken from the other run, and z follows from it:
- `q`, `k`, `v`, `pattern`. Heads that share keys and values change together for `k` and `v`, and
  have one effect: the result then has a column per key-value head.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.engine.interventions import (
    Engine,
    Replace,
    Run,
    budget_for,
    engine_for,
    measure,
    unchanged,
)
from mechheads.errors import MechheadsError, unknown
from mechheads.heads import check_heads
from mechheads.metrics import token as metrics
from mechheads.metrics.token import Metric
from mechheads.models.load import Model, attention_parts
from mechheads.progress import bar
from mechheads.prompts.batches import Batch, batches
from mechheads.prompts import Prompts

from .effects import HeadEffects, PositionEffects

DIRECTIONS = ("noising", "denoising")
PARTS = ("q", "k", "v", "pattern")
REPLACEMENTS = ("corrupt", "zero", "mean", "position_mean", *PARTS)

# What each layer's z is replaced by; None stands for nothing at all.
Source = Sequence[Float[Tensor, "row pos head d_head"]] | None
# What a mean is taken of: every layer's z, for a length of the prompts.
Means = dict[int, Float[Tensor, "layer pos head d_head"]]


@dataclass(frozen=True)
class Sides:
    """A batch, both its runs, and which of them is changed, with what."""

    batch: Batch
    clean: Run
    corrupt: Run
    direction: str
    source: Source

    @property
    def base(self) -> Run:
        """The run that is changed."""
        return self.clean if self.direction == "noising" else self.corrupt


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
    """Metric lost (noising) or restored (denoising) by changing each head alone, at all positions.

    Positive: the head helps. One partial forward pass per head. With `heads`, only those are
    changed, and the others' effects are 0.
    """
    wanted = metrics.find(metric or prompts.metric)
    check(direction, replacement)
    columns = _columns(model, replacement)
    cells = _chosen(heads, model.cfg.n_layers, columns)
    settings = {"direction": direction, "replacement": replacement}
    values, clean, corrupt = _sweep(
        model, prompts, wanted, cells, columns, None, budget=budget, quiet=quiet, **settings
    )
    return HeadEffects(
        prompts.task,
        model.cfg.model_name,
        "patch",
        wanted.name,
        values[..., 0],
        clean,
        corrupt,
        settings,
        unit="head" if columns == model.cfg.n_heads else "kv_head",
    )


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
    """The same for each head at each position alone; the prompts must have the same length.

    One partial forward pass per head and position, from that position on.
    """
    wanted = metrics.find(metric or prompts.metric)
    check(direction, replacement)
    columns = _columns(model, replacement)
    cells = _chosen(None, model.cfg.n_layers, columns)
    lengths = {batch.length for batch in batches(model, prompts)}
    if len(lengths) > 1:
        raise MechheadsError(
            f"The prompts of {prompts.task} have {min(lengths)} to {max(lengths)} tokens, their "
            "positions nothing in common. Use prompts of one template."
        )
    (n,) = lengths
    settings = {"direction": direction, "replacement": replacement}
    values, clean, corrupt = _sweep(
        model, prompts, wanted, cells, columns, n, budget=budget, quiet=quiet, **settings
    )
    return PositionEffects(
        prompts.task, model.cfg.model_name, wanted.name, values, clean, corrupt, settings
    )


def _sweep(
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
) -> tuple[Float[Tensor, "prompt layer column pos"], Tensor, Tensor]:
    """Every cell changed alone: at each of so many positions, or at all of them together.

    Also the metric of the clean and of the corrupted run.
    """
    engine, budget = engine_for(model), budget_for(model, budget)
    values = torch.zeros(len(prompts), model.cfg.n_layers, columns, positions or 1)
    untouched = torch.zeros(2, len(prompts))
    title = "Heads" if positions is None else "Heads x positions"
    with bar(len(cells) * (positions or 1), title, quiet) as progress:
        for sides in both_sides(model, engine, prompts, direction, replacement, budget):
            pairs = sides.batch.pairs
            clean, corrupt = untouched_ends(model, engine, sides, metric)
            untouched[0, pairs], untouched[1, pairs] = clean, corrupt
            first = sides.base.first
            for position in [None] if positions is None else range(first, positions):
                base = sides.base if position is None else replace(sides.base, first=position)
                for some in _passes(cells, base, budget):
                    at = None if position is None else torch.full((len(some),), position)
                    edit = Replace(_keep(model, some, columns), sides.source, at)
                    after = measure(model, engine.resume(base, edit), sides.batch, metric)
                    lost = clean - after if direction == "noising" else after - corrupt
                    for (layer, column), value in zip(some, lost, strict=True):
                        values[pairs, layer, column, position or 0] = value
                    progress.update(len(some) * len(pairs) / len(prompts))
    return values, untouched[0], untouched[1]


def check(direction: str, replacement: str) -> None:
    """An error names what is unknown, or does not go together."""
    if direction not in DIRECTIONS:
        raise unknown("direction", direction, DIRECTIONS)
    if replacement not in REPLACEMENTS:
        raise unknown("replacement", replacement, REPLACEMENTS)
    if direction == "denoising" and replacement in ("zero", "mean", "position_mean"):
        raise MechheadsError(
            f"Denoising puts clean activations into the corrupted run; {replacement} has none. Use "
            "noising with it."
        )


def both_sides(
    model: Model,
    engine: Engine,
    prompts: Prompts,
    direction: str,
    replacement: str,
    budget: int,
) -> Iterator[Sides]:
    """Batch by batch, both runs, and what the changed run's z are replaced by."""
    means = _means(model, engine, prompts, replacement, budget)
    for batch in batches(model, prompts, max_tokens=budget):
        shared = replacement == "corrupt" or replacement in PARTS
        runs = [
            engine.remember(tokens, batch.first if shared else 0, batch.steps)
            for tokens in (batch.clean, batch.corrupt)
        ]
        base, other = runs if direction == "noising" else runs[::-1]
        if replacement in PARTS:
            source = _with_part(model, base, other, replacement)
        elif means:
            shape = base.z[0].shape
            source = [z.expand(shape) for z in means[0 if replacement == "mean" else batch.length]]
        else:
            source = other.z if replacement == "corrupt" else None
        yield Sides(batch, runs[0], runs[1], direction, source)


def untouched_ends(
    model: Model, engine: Engine, sides: Sides, metric: Metric
) -> tuple[Float[Tensor, " batch"], Float[Tensor, " batch"]]:
    """The metric of the clean and of the corrupted run as they are."""
    clean, corrupt = (
        measure(model, engine.resume(run, unchanged(model)), sides.batch, metric)[0]
        for run in (sides.clean, sides.corrupt)
    )
    return clean, corrupt


def _columns(model: Model, replacement: str) -> int:
    """Heads that are changed apart: those that share keys and values have only one of each."""
    shared = model.cfg.n_key_value_heads
    return shared if replacement in ("k", "v") and shared is not None else model.cfg.n_heads


def _chosen(
    heads: Sequence[tuple[int, int]] | None, layers: int, columns: int
) -> list[tuple[int, int]]:
    if heads is None:
        return [(layer, column) for layer in range(layers) for column in range(columns)]
    check_heads(heads, layers, columns)
    return sorted(set(heads))


def _passes(
    cells: Sequence[tuple[int, int]], base: Run, budget: int
) -> Iterator[list[tuple[int, int]]]:
    """Heads of one layer each, as many as the budget lets run together."""
    rows, n = base.shape
    size = max(1, budget // (rows * (n - base.first)))
    for layer in sorted({layer for layer, _ in cells}):
        here = [cell for cell in cells if cell[0] == layer]
        for i in range(0, len(here), size):
            yield here[i : i + size]


def _keep(
    model: Model, cells: Sequence[tuple[int, int]], columns: int
) -> Float[Tensor, "variant layer head"]:
    """One (layer, column) replaced in each variant; a column may be several heads."""
    keep = torch.ones(len(cells), model.cfg.n_layers, model.cfg.n_heads)
    size = model.cfg.n_heads // columns
    for i, (layer, column) in enumerate(cells):
        keep[i, layer, column * size : (column + 1) * size] = 0.0
    return keep


def _with_part(model: Model, base: Run, other: Run, part: str) -> Source:
    """Every layer's z as it is when one part of each head comes from the other run."""
    found = []
    for layer in range(model.cfg.n_layers):
        theirs = attention_parts(model, layer, other.entering[layer])
        mixed = attention_parts(model, layer, base.entering[layer], {part: theirs[part]})
        found.append(mixed["z"])
    return found


def _means(model: Model, engine: Engine, prompts: Prompts, replacement: str, budget: int) -> Means:
    """Every head's mean z over the corrupted prompts: at key 0, or by length and position."""
    if replacement not in ("mean", "position_mean"):
        return {}
    sums: dict[int, Tensor] = {}
    counts: dict[int, int] = {}
    for batch in batches(model, prompts, max_tokens=budget):
        z = torch.stack([z.sum(0) for z in engine.remember(batch.corrupt, 0, batch.steps).z])
        whole = replacement == "mean"
        key = 0 if whole else batch.length
        found = z.sum(1, keepdim=True) if whole else z
        sums[key] = sums[key] + found if key in sums else found
        counts[key] = counts.get(key, 0) + len(batch.pair_of) * (batch.length if whole else 1)
    return {key: value / counts[key] for key, value in sums.items()}
