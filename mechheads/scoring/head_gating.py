"""Gating as a scoring method: facilitation minus interference, one value per seed."""

import torch

from mechheads.engine.head_subsets import measure_subsets
from mechheads.metrics import MetricLike
from mechheads.models.model import Model, model_name, shape_of
from mechheads.observe.evaluation import evaluate
from mechheads.prompts import Prompts

from .effects import HeadEffects
from .gate_fitting import FitSettings, fit_gates
from .gate_roles import Gates, HeadRoles


def gating(
    model: Model,
    prompts: Prompts,
    metric: MetricLike | None = None,
    *,
    seeds: int = 10,
    updates: int = 500,
    batch: int | None = None,
    held_out: Prompts | None = None,
    budget: int | None = None,
    quiet: bool = False,
) -> HeadEffects:
    """Facilitation minus interference of every head, from -1 to 1; positive: the head helps.

    Fits three sets of gates per seed to the log probability of the answers, whatever the metric:
    two forward and backward passes per update. A row of `values` is a seed, and there are no
    p-values and no intervals of the scores; `roles` says how many seeds agree, and what every head
    gains on each of the prompts `held_out`, or if there are none, on those that were fitted.
    """
    settings = FitSettings(seeds=seeds, updates=updates, batch=batch)
    found = fit_gates(model, prompts, settings, budget=budget, quiet=quiet)
    tested = prompts if held_out is None else held_out
    roles = judge_roles(
        model, found, tested, held_out=held_out is not None, budget=budget, quiet=quiet
    )
    untouched = evaluate(model, prompts, metric, quiet=True)
    clean, corrupt = (
        torch.full((seeds,), side[untouched.metric].mean().item())
        for side in (untouched.clean, untouched.corrupt)
    )
    settings = {"seeds": seeds, "updates": updates, "batch": found.settings["batch"]}
    return HeadEffects(
        prompts.task,
        model_name(model),
        "gating",
        untouched.metric,
        found.effects.float(),
        clean,
        corrupt,
        settings,
        {"warnings": list(found.warnings)},
        over="seeds",
        quantity="facilitation minus interference",
        roles=roles,
    )


def judge_roles(
    model: Model,
    found: Gates,
    prompts: Prompts,
    *,
    held_out: bool = True,
    budget: int | None = None,
    quiet: bool = False,
) -> HeadRoles:
    """The role of every head, and its gain on prompts that its gates were not fitted to.

    Every head's gate is opened and closed in the mask G+ (mean over seeds), as the ablation curves
    do for several heads. Costs two subsets of heads per head.
    """
    layers, heads = shape_of(model).grid
    keep = found.plus.mean(0).float().repeat(2, layers * heads, 1, 1)
    for i, (layer, head) in enumerate(shape_of(model).every_head):
        keep[0, i, layer, head], keep[1, i, layer, head] = 1.0, 0.0
    values = measure_subsets(
        model,
        prompts,
        keep.flatten(0, 1),
        "logprob",
        replacement="zero",
        budget=budget,
        quiet=quiet,
    )
    opened, shut = values.unflatten(0, (2, layers * heads))
    gain = (opened - shut).T.unflatten(1, (layers, heads)).contiguous()
    names = tuple(found.role_of(*head) for head in shape_of(model).every_head)
    return HeadRoles(names, found.agreement, gain, held_out)
