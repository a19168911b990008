"""Attribution patching: estimates the effect of patching every head from one backward pass.

Replacing a head's z by z' changes the metric by about (z' - z) . dm/dz (attribution patching, Nanda
2023). With `ig` the gradient is averaged over inputs between the corrupted and the clean prompt
(EAP-IG, Hanna et al. 2024, arXiv:2403.17806), which helps where the gradient vanishes at one end.

1. The run that z' comes from is cached.
2. The other run goes through the engine with a probe on every head: z + probe * (z' - z), probe 0.
   The gradient with respect to a probe is the estimated change.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads import metrics
from mechheads.engine.cached_run import CachedRun, Engine, measure
from mechheads.engine.interventions import (
    Intervention,
    StateIndex,
    Variants,
    Z,
    all_apart,
    unchanged,
)
from mechheads.engine.paired_runs import DIRECTIONS, check_corrupt, with_reference
from mechheads.engine.select import engine_for, frozen, gradient_budget
from mechheads.errors import MechheadsError, unknown
from mechheads.metrics import Metric, MetricLike
from mechheads.models.hooks import embed, gradient
from mechheads.models.model import Model, encoder_of, shape_of
from mechheads.progress import bar
from mechheads.prompts import Prompts
from mechheads.prompts.batches import Batch, batches

from .batching import BatchEffects, score_batches
from .effects import HeadEffects


@dataclass(frozen=True)
class ProbeHeads:
    """z + probe * (toward - z'), where z' is `away`, or this run's own z if that is None."""

    probe: Float[Tensor, "row layer head"]
    toward: Sequence[Float[Tensor, "row pos head d_head"]]
    away: Sequence[Float[Tensor, "row pos head d_head"]] | None = None
    variants: int = 1
    start: int = 0

    def touches(self, layer: int) -> bool:
        """True: every layer's z is probed."""
        return True

    def __call__(self, layer: int, z: Z, where: slice) -> Z:
        """A layer's new z at the positions `where`."""
        here = z[0].detach() if self.away is None else self.away[layer][:, where]
        step = self.toward[layer][:, where] - here
        return z + (self.probe[:, layer, None, :, None] * step).to(z.dtype)

    def branch(self, layer: int, state_of: Variants) -> tuple[StateIndex, Variants, Intervention]:
        """Every variant has its own state: there is only one."""
        return all_apart(self, state_of)


def attribution(
    model: Model,
    prompts: Prompts,
    metric: MetricLike | None = None,
    *,
    direction: str = "noising",
    budget: int | None = None,
    quiet: bool = False,
) -> HeadEffects:
    """Estimate `patch`, with the same sign, from the gradient at the run that is changed.

    Two forward passes and one backward pass for all heads together.
    """

    def gradients(engine: Engine, batch: Batch, wanted: Metric) -> list[Tensor]:
        base, other = _ends_of(batch, direction)
        there = _cache(engine, other, batch)
        value, slope = _slope(model, engine, batch, wanted, there, embed(model, base), None)
        with torch.no_grad():
            theirs = measure(model, engine.rerun(there, unchanged(shape_of(model))), batch, wanted)[
                0
            ]
        clean, corrupt = (value, theirs) if direction == "noising" else (theirs, value)
        return [slope, clean, corrupt]

    settings = {"direction": direction}
    return _estimate(model, prompts, metric, "attribution", settings, budget, quiet, gradients)


def ig(
    model: Model,
    prompts: Prompts,
    metric: MetricLike | None = None,
    *,
    direction: str = "noising",
    steps: int = 5,
    budget: int | None = None,
    quiet: bool = False,
) -> HeadEffects:
    """Estimate `patch`, with the same sign, from gradients averaged between the two prompts.

    Two forward passes, plus a forward and a backward pass per step.
    """
    if steps < 1:
        raise MechheadsError(f"ig takes 1 or more steps, got {steps}.")

    def gradients(engine: Engine, batch: Batch, wanted: Metric) -> list[Tensor]:
        clean, corrupt = (_cache(engine, t, batch) for t in (batch.clean, batch.corrupt))
        base, other = (clean, corrupt) if direction == "noising" else (corrupt, clean)
        with torch.no_grad():
            ends = [
                measure(model, engine.rerun(run, unchanged(shape_of(model))), batch, wanted)[0]
                for run in (clean, corrupt)
            ]
            near, far = embed(model, batch.corrupt), embed(model, batch.clean)
        total = torch.zeros(())
        for i in range(steps):
            inputs = torch.lerp(near, far, (i + 0.5) / steps)
            total = total + _slope(model, engine, batch, wanted, other, inputs, base)[1]
        return [total / steps, *ends]

    settings = {"direction": direction, "steps": steps}
    return _estimate(model, prompts, metric, "ig", settings, budget, quiet, gradients)


def _estimate(
    model: Model,
    prompts: Prompts,
    metric: MetricLike | None,
    method: str,
    settings: Mapping[str, str | int],
    budget: int | None,
    quiet: bool,
    gradients: Callable[[Engine, Batch, Metric], list[Tensor]],
) -> HeadEffects:
    wanted = metrics.choose(metric, prompts)
    if settings["direction"] not in DIRECTIONS:
        raise unknown("direction", str(settings["direction"]), DIRECTIONS)
    check_corrupt(prompts, str(settings["direction"]))
    check_gradient(wanted, "" if method == "ig" else str(settings["direction"]))
    sign = -1.0 if settings["direction"] == "noising" else 1.0

    def parts() -> Iterator[BatchEffects]:
        engine, size = engine_for(model), gradient_budget(model, budget)
        with bar(len(prompts), "Prompts", quiet) as progress:
            for batch in batches(encoder_of(model), prompts, max_tokens=size):
                judged = with_reference(model, engine, batch, wanted)
                slope, clean, corrupt = gradients(engine, judged, wanted)
                yield BatchEffects(batch.pairs, sign * slope, clean, corrupt)
                progress.update(len(batch.pairs))

    return score_batches(model, prompts, method, wanted, parts(), settings)


def check_gradient(metric: Metric, direction: str) -> None:
    """Raise if the metric has no gradient, or none at the run that is changed."""
    if not metric.smooth:
        raise MechheadsError(
            f"The metric {metric.name} is a step function and has no gradient. Use logit_diff, or "
            "the method patch."
        )
    if metric.flat and direction == "noising":
        raise MechheadsError(
            f"The metric {metric.name} is largest in the clean run, so its gradient there is 0. "
            "Use the method patch or ig, or the direction denoising."
        )


def _ends_of(batch: Batch, direction: str) -> tuple[Tensor, Tensor]:
    """The tokens of the run that is changed, and of the other run."""
    clean, corrupt = batch.clean, batch.corrupt
    return (clean, corrupt) if direction == "noising" else (corrupt, clean)


@torch.no_grad()
def _cache(engine: Engine, tokens: Tensor, batch: Batch) -> CachedRun:
    return engine.cache(tokens, batch.first, batch.steps)


@torch.enable_grad()
def _slope(
    model: Model,
    engine: Engine,
    batch: Batch,
    metric: Metric,
    toward: CachedRun,
    inputs: Float[Tensor, "row pos d_model"],
    away: CachedRun | None,
) -> tuple[Float[Tensor, " batch"], Float[Tensor, "batch layer head"]]:
    """The metric of a run on these inputs, and its gradient with respect to every head's probe."""
    rows, device = len(batch.pair_of), inputs.device
    shape = shape_of(model)
    probe = torch.zeros(rows, *shape.grid, device=device, requires_grad=True)
    change = ProbeHeads(probe, toward.z, away.z if away else None)
    with frozen(model):
        end = engine.rerun_from(toward, inputs.detach(), change)
        value = measure(model, end, batch, metric)[0]
    if not value.requires_grad:
        raise MechheadsError(
            f"The metric {metric.name} has no gradient: it does not depend on the logits in a way "
            "that torch can follow. Use the method patch."
        )
    slope = gradient(model, value.sum(), probe)
    summed = torch.zeros(len(batch.pairs), *shape.grid)
    summed.index_add_(0, batch.pair_of, slope.float().cpu())
    return value.detach(), summed
