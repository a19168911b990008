"""The clean and corrupted runs of a batch, and what replaces z in the run that is changed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.errors import MechheadsError, unknown
from mechheads.metrics import Metric
from mechheads.models.hooks import attention_parts
from mechheads.models.model import Model, encoder_of, shape_of
from mechheads.prompts import Prompts
from mechheads.prompts.batches import Batch, batches

from .cached_run import CachedRun, Engine, measure
from .interventions import unchanged

DIRECTIONS = ("noising", "denoising")
PARTS = ("q", "k", "v", "pattern")
REPLACEMENTS = ("corrupt", "zero", "mean", "position_mean", *PARTS)

# What replaces each layer's z; None stands for zeros.
Source = Sequence[Float[Tensor, "row pos head d_head"]] | None
# Every layer's mean z, by prompt length.
Means = dict[int, Float[Tensor, "layer pos head d_head"]]


@dataclass(frozen=True)
class PairedRun:
    """A batch, both its runs, which of them is changed, and what replaces its z."""

    batch: Batch
    clean: CachedRun
    corrupt: CachedRun
    direction: str
    source: Source

    @property
    def base(self) -> CachedRun:
        """The run that is changed."""
        return self.clean if self.direction == "noising" else self.corrupt


def check_patching(direction: str, replacement: str) -> None:
    """Raise if either is unknown, or if they do not go together."""
    if direction not in DIRECTIONS:
        raise unknown("direction", direction, DIRECTIONS)
    if replacement not in REPLACEMENTS:
        raise unknown("replacement", replacement, REPLACEMENTS)
    if direction == "denoising" and replacement in ("zero", "mean", "position_mean"):
        raise MechheadsError(
            "Denoising patches clean activations into the corrupted run, so it cannot use "
            f"{replacement}. Use noising instead."
        )


def paired_runs(
    model: Model,
    engine: Engine,
    prompts: Prompts,
    direction: str,
    replacement: str,
    budget: int,
) -> Iterator[PairedRun]:
    """Both runs of every batch, and what replaces z in the run that is changed."""
    means = _means(model, engine, prompts, replacement, budget)
    for batch in batches(encoder_of(model), prompts, max_tokens=budget):
        shared = replacement == "corrupt" or replacement in PARTS
        runs = [
            engine.cache(tokens, batch.first if shared else 0, batch.steps)
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
        yield PairedRun(batch, runs[0], runs[1], direction, source)


def baselines(
    model: Model, engine: Engine, sides: PairedRun, metric: Metric
) -> tuple[Float[Tensor, " batch"], Float[Tensor, " batch"]]:
    """The metric of the unchanged clean and corrupted runs."""
    clean, corrupt = (
        measure(model, engine.rerun(run, unchanged(shape_of(model))), sides.batch, metric)[0]
        for run in (sides.clean, sides.corrupt)
    )
    return clean, corrupt


def _with_part(model: Model, base: CachedRun, other: CachedRun, part: str) -> Source:
    """Every layer's z when one part of each head comes from the other run."""
    found = []
    for layer in range(shape_of(model).layers):
        theirs = attention_parts(model, layer, other.entering[layer])
        mixed = attention_parts(model, layer, base.entering[layer], {part: theirs[part]})
        found.append(mixed["z"])
    return found


def _means(model: Model, engine: Engine, prompts: Prompts, replacement: str, budget: int) -> Means:
    """Every head's mean z over the corrupted prompts, overall (key 0) or by length and position."""
    if replacement not in ("mean", "position_mean"):
        return {}
    sums: dict[int, Tensor] = {}
    counts: dict[int, int] = {}
    for batch in batches(encoder_of(model), prompts, max_tokens=budget):
        z = torch.stack([z.sum(0) for z in engine.cache(batch.corrupt, 0, batch.steps).z])
        whole = replacement == "mean"
        key = 0 if whole else batch.length
        found = z.sum(1, keepdim=True) if whole else z
        sums[key] = sums[key] + found if key in sums else found
        counts[key] = counts.get(key, 0) + len(batch.pair_of) * (batch.length if whole else 1)
    return {key: value / counts[key] for key, value in sums.items()}
