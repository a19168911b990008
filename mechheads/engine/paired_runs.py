"""The clean and corrupted runs of a batch, and what replaces z in the run that is changed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.errors import MechheadsError, unknown
from mechheads.metrics import Metric, after_prompt
from mechheads.models.hooks import attention_parts, unembed
from mechheads.models.model import Model, encoder_of, shape_of
from mechheads.prompts import Prompts
from mechheads.prompts.batches import Batch, batches

from .cached_run import CachedRun, Engine, measure
from .interventions import unchanged

DIRECTIONS = ("noising", "denoising")
PARTS = ("q", "k", "v", "pattern")
ABLATIONS = ("zero", "mean", "position_mean")
REPLACEMENTS = ("corrupt", *ABLATIONS, *PARTS)

# What replaces each layer's z; None stands for zeros.
SourceZ = Sequence[Float[Tensor, "row pos head d_head"]] | None
# Every layer's mean z, by prompt length.
Means = dict[int, Float[Tensor, "layer pos head d_head"]]


@dataclass(frozen=True)
class PairedRun:
    """A batch, both its runs, which of them is changed, and what replaces its z."""

    batch: Batch
    clean: CachedRun
    corrupt: CachedRun
    direction: str
    source: SourceZ

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
    if direction == "denoising" and replacement in ABLATIONS:
        raise MechheadsError(
            "Denoising patches clean activations into the corrupted run, so it cannot use "
            f"{replacement}. Use noising instead."
        )


def check_corrupt(prompts: Prompts, direction: str, replacement: str = "corrupt") -> None:
    """Raise if a prompt has no corrupted twin but its run is needed."""
    lacking = next((pair for pair in prompts.pairs if not pair.corrupt), None)
    if lacking is None or (direction == "noising" and replacement in ABLATIONS):
        return
    where = lacking.source or f"A prompt of {prompts.task} ({lacking.clean[:36]!r})"
    raise MechheadsError(
        f"{where} has no corrupted prompt, which this needs. Add one, or ablate heads with the "
        f"method patch and the replacement {', '.join(ABLATIONS[:-1])} or {ABLATIONS[-1]}."
    )


def paired_runs(
    model: Model,
    engine: Engine,
    prompts: Prompts,
    direction: str,
    replacement: str,
    budget: int,
    metric: Metric,
) -> Iterator[PairedRun]:
    """Both runs of every batch, and what replaces z in the run that is changed."""
    check_corrupt(prompts, direction, replacement)
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
            source = _spread(means[0 if replacement == "mean" else batch.prompt_length], base)
        else:
            source = other.z if replacement == "corrupt" else None
        judged = with_reference(model, engine, batch, metric, runs[0])
        yield PairedRun(judged, runs[0], runs[1], direction, source)


@torch.no_grad()
def with_reference(
    model: Model, engine: Engine, batch: Batch, metric: Metric, clean: CachedRun | None = None
) -> Batch:
    """The batch with the clean run's logits, if the metric needs them."""
    if not metric.whole:
        return batch
    run = clean or engine.cache(batch.clean, batch.first, batch.steps)
    end = engine.rerun(run, unchanged(shape_of(model)))[0]
    logits = after_prompt(unembed(model, end[:, :1]), batch)
    return replace(batch, reference=logits.float().cpu())


def baselines(
    model: Model, engine: Engine, sides: PairedRun, metric: Metric
) -> tuple[Float[Tensor, " batch"], Float[Tensor, " batch"]]:
    """The metric of the unchanged clean and corrupted runs."""
    clean, corrupt = (
        measure(model, engine.rerun(run, unchanged(shape_of(model))), sides.batch, metric)[0]
        for run in (sides.clean, sides.corrupt)
    )
    return clean, corrupt


def _with_part(model: Model, base: CachedRun, other: CachedRun, part: str) -> SourceZ:
    """Every layer's z when one part of each head comes from the other run."""
    found = []
    for layer in range(shape_of(model).layers):
        theirs = attention_parts(model, layer, other.entering[layer])
        mixed = attention_parts(model, layer, base.entering[layer], {part: theirs[part]})
        found.append(mixed["z"])
    return found


def _means(model: Model, engine: Engine, prompts: Prompts, replacement: str, budget: int) -> Means:
    """Every head's mean z over the corrupted prompts, overall (key 0) or by length and position.

    Only the prompts' own tokens count, each prompt once: not the answers that follow them.
    """
    if replacement not in ("mean", "position_mean"):
        return {}
    sums: dict[int, Tensor] = {}
    counts: dict[int, int] = {}
    for batch in batches(encoder_of(model), prompts, max_tokens=budget):
        tokens = batch.corrupt_prompts
        z = torch.stack([z.sum(0) for z in engine.cache(tokens, 0, 1).z])
        whole, length = replacement == "mean", batch.prompt_length
        key = 0 if whole else length
        found = z.sum(1, keepdim=True) if whole else z
        sums[key] = sums[key] + found if key in sums else found
        counts[key] = counts.get(key, 0) + len(tokens) * (length if whole else 1)
    return {key: value / counts[key] for key, value in sums.items()}


def _spread(means: Float[Tensor, "layer own head d_head"], base: CachedRun) -> SourceZ:
    """A mean for every row and position; positions of the answers get that of the prompt's end."""
    more = base.shape[1] - means.shape[1]
    end = means[:, -1:].expand(-1, more, -1, -1)
    return [z.expand(base.z[0].shape) for z in torch.cat([means, end], dim=1)]
