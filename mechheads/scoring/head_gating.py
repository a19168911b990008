"""Gating as a scoring method: facilitation minus interference, one value per seed."""

import torch

from mechheads.models.model import Model, model_name
from mechheads.observe.evaluation import evaluate
from mechheads.prompts import Prompts

from .effects import HeadEffects
from .gate_fitting import FitSettings, fit_gates


def gating(
    model: Model,
    prompts: Prompts,
    metric: str | None = None,
    *,
    seeds: int = 10,
    updates: int = 500,
    batch: int | None = None,
    budget: int | None = None,
    quiet: bool = False,
) -> HeadEffects:
    """Facilitation minus interference of every head, from -1 to 1; positive: the head helps.

    Fits three sets of gates per seed to the log probability of the answers, whatever the metric:
    two forward and backward passes per update. Means and errors are over seeds.
    """
    settings = FitSettings(seeds=seeds, updates=updates, batch=batch)
    found = fit_gates(model, prompts, settings, budget=budget, quiet=quiet)
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
    )
