"""A backward pass by layers, in which a rule changes how the gradient flows through each of them.

1. Both runs are cached. The gradient of the metric at the end of the run that is changed is plain.
2. From the last layer to the first, that layer alone is run again, and the gradient of what leaves
   it becomes the gradient of every head's z and of what enters it.
3. Inside a layer, a rule may add to the gradients of its neurons' inputs, and then to those of its
   queries, keys and values. Without a rule, this is attribution patching.
4. `drop` keeps further gradients, each without what goes through one layer: they go around it.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads import metrics
from mechheads.engine.cached_run import CachedRun, Engine, measure
from mechheads.engine.interventions import unchanged
from mechheads.engine.paired_runs import PairedRun, baselines, check_patching, paired_runs
from mechheads.engine.select import budget_for, engine_for, frozen
from mechheads.errors import MechheadsError
from mechheads.metrics import Metric, MetricLike
from mechheads.models.hooks import SCALES, frozen_final_norm, layer_parts
from mechheads.models.model import Model, model_name, shape_of
from mechheads.progress import bar
from mechheads.prompts import Prompts
from mechheads.prompts.batches import Batch

from ..attribution_patching import check_gradient
from ..batching import BatchEffects, score_batches
from ..effects import HeadEffects

Residual = Float[Tensor, "row pos d_model"]
Parts = Mapping[str, Tensor]


@dataclass(frozen=True)
class Layer:
    """A layer of the run that is changed, with gradients, and of the other run, without."""

    model: Model
    index: int
    base: Residual
    other: Residual
    parts: Parts

    def replaced(self, part: str, value: Tensor) -> dict[str, Tensor]:
        """The layer's parts if one of them comes from the other run; no gradients."""
        with torch.no_grad():
            return layer_parts(self.model, self.index, self.base.detach(), {part: lambda _: value})


@runtime_checkable
class Rule(Protocol):
    """What a method adds to the gradients inside a layer.

    With `frozen_norms`, the scales of norms are constants. `prepare` is called once per layer, and
    what it returns is given to the others.
    """

    @property
    def frozen_norms(self) -> bool:
        """Whether gradients do not flow through the scales of norms."""
        ...

    def prepare(self, layer: Layer) -> dict[str, Tensor]:
        """What the rule needs to know about a layer."""
        ...

    def at_neurons(self, parts: Parts, known: Parts, slopes: Parts) -> dict[str, Tensor]:
        """What to add to the gradients of parts of the MLP."""
        ...

    def at_heads(self, parts: Parts, known: Parts, slopes: Parts) -> dict[str, Tensor]:
        """What to add to the gradients of queries, keys and values."""
        ...


def score(
    model: Model,
    prompts: Prompts,
    metric: MetricLike | None,
    method: str,
    settings: Mapping[str, Any],
    rule: Rule,
    *,
    drop: bool,
    budget: int | None,
    quiet: bool,
) -> HeadEffects:
    """Every head's effect as the gradients under a rule estimate it; the sign is that of `patch`.

    With `drop`, the mean size over the gradients that avoid a layer, with the sign of the others.
    """
    wanted, direction = metrics.choose(metric, prompts), str(settings["direction"])
    check_patching(direction, "corrupt")
    check_gradient(wanted, direction)
    sign = -1.0 if direction == "noising" else 1.0

    def parts() -> Iterator[BatchEffects]:
        engine, size = engine_for(model), budget_for(model, budget)
        runs = (model, engine, prompts, direction, "corrupt", size, wanted)
        with bar(len(prompts), "Prompts", quiet) as progress, torch.no_grad(), frozen(model):
            for sides in paired_runs(*runs):
                found = sign * _effects(model, engine, sides, wanted, rule, drop)
                yield BatchEffects(
                    sides.batch.pairs, found, *baselines(model, engine, sides, wanted)
                )
                progress.update(len(sides.batch.pairs))

    return score_batches(model, prompts, method, wanted, parts(), settings)


def _effects(
    model: Model, engine: Engine, sides: PairedRun, metric: Metric, rule: Rule, drop: bool
) -> Float[Tensor, "batch layer head"]:
    other = sides.corrupt if sides.base is sides.clean else sides.clean
    shape = shape_of(model)
    found = torch.zeros(len(sides.batch.pairs), *shape.grid)
    leaving = [_end_slope(model, engine, sides.base, sides.batch, metric, rule)]
    for index in reversed(range(shape.layers)):
        layer = _run_layer(model, index, sides.base, other, rule)
        known = rule.prepare(layer)
        step = other.z[index] - sides.base.z[index]
        changes, entering = [], []
        for slope in leaving:
            at_z, before = _through(layer, rule, known, slope)
            changes.append(_by_pair(sides.batch, (at_z * step).sum((1, 3))))
            entering.append(before)
        found[:, index] = _mean_size(changes, index) if drop else changes[0]
        leaving = [*entering, leaving[0]] if drop else entering
    return found


def _mean_size(changes: Sequence[Float[Tensor, "batch head"]], below: int) -> Tensor:
    """The mean size over all gradients, with the sign of the first.

    Dropping one of the layers below changes nothing for a head, so it counts as the first.
    """
    sizes = torch.stack([change.abs() for change in changes])
    mean = (sizes.sum(0) + below * sizes[0]) / (len(changes) + below)
    total = torch.stack(list(changes)).sum(0)
    return mean * torch.where(changes[0] == 0, total, changes[0]).sign()


def _by_pair(batch: Batch, rows: Float[Tensor, "row head"]) -> Float[Tensor, "batch head"]:
    found = torch.zeros(len(batch.pairs), rows.shape[1])
    return found.index_add_(0, batch.pair_of.cpu(), rows.float().cpu())


def _end_slope(
    model: Model, engine: Engine, base: CachedRun, batch: Batch, metric: Metric, rule: Rule
) -> Residual:
    """The gradient of the metric with respect to what leaves the last layer."""
    end = engine.rerun(base, unchanged(shape_of(model))).detach()
    freezing = frozen_final_norm(model) if rule.frozen_norms else nullcontext()
    with torch.enable_grad(), freezing:
        value = measure(model, end.requires_grad_(), batch, metric).sum()
    if not value.requires_grad:
        raise MechheadsError(
            f"The metric {metric.name} has no gradient: it does not depend on the logits in a way "
            "that torch can follow. Use the method patch."
        )
    (slope,) = torch.autograd.grad(value, end)
    whole = slope.new_zeros(*base.shape, slope.shape[-1])
    whole[:, -base.steps :] = slope[0]
    return whole


def _run_layer(model: Model, index: int, base: CachedRun, other: CachedRun, rule: Rule) -> Layer:
    with torch.enable_grad():
        entering = base.entering[index].detach().clone().requires_grad_()
        frozen_scales = dict.fromkeys(SCALES, torch.Tensor.detach) if rule.frozen_norms else {}
        parts = layer_parts(model, index, entering, frozen_scales)
    if missing := [part for part in ("q", "k", "v", "scores", "pattern") if part not in parts]:
        raise MechheadsError(
            f"The attention of {model_name(model)} does not show its {missing[0]} on this backend. "
            "Use the method patch or attribution, or the backend hooked."
        )
    return Layer(model, index, entering, other.entering[index], parts)


def _through(
    layer: Layer, rule: Rule, known: Parts, slope: Residual
) -> tuple[Float[Tensor, "row pos head d_head"], Residual]:
    """The gradients of z and of what enters the layer, from that of what leaves it."""
    parts, entering = layer.parts, layer.base
    neurons = {part: parts[part] for part in ("pre", "pre_linear", "post") if part in parts}
    extra = {}
    if neurons:
        extra = rule.at_neurons(parts, known, gradients({"out": slope}, parts, neurons))
    whole = dict(parts) | {"entering": entering}
    names = ("entering", "z", "pattern", "scores", "q", "k", "v")
    slopes = gradients({"out": slope} | extra, parts, {name: whole[name] for name in names})
    extra = rule.at_heads(parts, known, slopes)
    before = slopes["entering"]
    if extra:
        before = before + gradients(extra, parts, {"entering": entering})["entering"]
    return slopes["z"], before


def gradients(slopes: Parts, parts: Parts, inputs: Parts) -> dict[str, Tensor]:
    """The gradients of the inputs, from those of some parts; 0 where nothing depends on it."""
    found = torch.autograd.grad(
        [parts[name] for name in slopes],
        list(inputs.values()),
        list(slopes.values()),
        retain_graph=True,
        allow_unused=True,
    )
    return {
        name: torch.zeros_like(inputs[name]) if slope is None else slope
        for name, slope in zip(inputs, found, strict=True)
    }
