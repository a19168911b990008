"""The metric with subsets of heads kept and the others replaced, many subsets in one pass."""

import itertools
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads import metrics
from mechheads.errors import MechheadsError
from mechheads.heads import check_heads
from mechheads.metrics import MetricLike
from mechheads.models.model import Model, model_name, shape_of
from mechheads.progress import bar
from mechheads.prompts import Prompts

from .cached_run import measure
from .interventions import Replace
from .paired_runs import check_patching, paired_runs
from .select import budget_for, engine_for

# A pass has room for at least this many masks, rather than for more prompts: masks share layers.
TOGETHER = 32


@torch.inference_mode()
def measure_subsets(
    model: Model,
    prompts: Prompts,
    keep: Float[Tensor, "variant layer head"],
    metric: MetricLike | None = None,
    *,
    direction: str = "noising",
    replacement: str = "corrupt",
    share: tuple[int, int] = (0, 1),
    budget: int | None = None,
    quiet: bool = False,
) -> Float[Tensor, "variant prompt"]:
    """Measure the metric with subsets of heads kept and the others replaced.

    Args:
        model: what `mechheads.load` returns
        prompts: what `tasks.make` returns
        keep: a mask per subset: 1 keeps a head, 0 replaces it, values in between mix both
        metric: a name in `mechheads.METRICS`, or your own function; default: the task's own
        direction: "noising" keeps heads of the clean run, "denoising" those of the corrupted run
        replacement: "corrupt", "zero", "mean" or "position_mean"
        share: (i, n) makes every n-th pass only, from the i-th on, and leaves the other values at
            0: the n shares, from 0 on, add up to the whole
        budget: tokens per pass, which bounds memory; default: chosen for the device
        quiet: show no progress bar

    Returns:
        The metric of every prompt with every subset. Everything after a replaced head is rerun.
        Subsets that agree in the first layers share their passes there, so a curve of nested
        subsets costs about half as much as its points do separately.

    >>> import mechheads, tasks, torch
    >>> model = mechheads.load("mini")
    >>> prompts = tasks.make("ioi", model, n=8)
    >>> everything, nothing = torch.ones(1, 4, 8), torch.zeros(1, 4, 8)
    >>> masks = torch.cat([everything, nothing])
    >>> whole, none = mechheads.measure_subsets(model, prompts, masks, quiet=True).mean(1).tolist()
    >>> whole > none
    True
    """
    wanted = metrics.choose(metric, prompts)
    check_patching(direction, replacement)
    shape = shape_of(model).grid
    if keep.shape[1:] != shape:
        raise MechheadsError(
            f"Masks for {model_name(model)} must have {shape[0]} x {shape[1]} heads."
        )
    engine, budget = engine_for(model), budget_for(model, budget)
    # Each mask once, sorted: neighbours share most of their first layers.
    masks, mask_of = keep.flatten(1).unique(dim=0, return_inverse=True)
    masks = masks.unflatten(1, shape)
    values = torch.zeros(len(masks), len(prompts))
    few, passes = budget // TOGETHER, itertools.count()
    with bar(len(masks), "Masks", quiet) as progress:
        for sides in paired_runs(model, engine, prompts, direction, replacement, few, wanted):
            rows, n = sides.base.shape
            size = max(1, budget // (rows * (n - sides.base.first)))
            for begin in range(0, len(masks), size):
                some = masks[begin : begin + size]
                if next(passes) % share[1] != share[0]:
                    continue
                end = engine.rerun(sides.base, Replace(some, sides.source))
                found = measure(model, end, sides.batch, wanted)
                values[begin : begin + size, sides.batch.pairs] = found
                progress.update(len(some) * len(sides.batch.pairs) / len(prompts))
    return values[mask_of]


def nested(
    ranking: Sequence[tuple[int, int]], layers: int, heads: int
) -> Float[Tensor, "k layer head"]:
    """The masks that keep the first k heads of a ranking, for every k from 0 to all."""
    keep = torch.zeros(len(ranking) + 1, layers, heads)
    check_heads(ranking, layers, heads)
    for k, (layer, head) in enumerate(ranking, start=1):
        keep[k:, layer, head] = 1.0
    return keep


def keep_only(
    kept: Sequence[tuple[int, int]], layers: int, heads: int
) -> Float[Tensor, "layer head"]:
    """The mask that keeps only these heads."""
    keep = torch.zeros(layers, heads)
    check_heads(kept, layers, heads)
    for layer, head in kept:
        keep[layer, head] = 1.0
    return keep
