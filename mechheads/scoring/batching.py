"""Joins the effects of single batches into one result, for all scoring methods."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechheads.metrics import Metric
from mechheads.models.model import Model, model_name
from mechheads.prompts import Prompts

from .effects import HeadEffects


@dataclass(frozen=True)
class BatchEffects:
    """Effects on the prompts of one batch, and the metric of their clean and corrupted runs."""

    pairs: Int[Tensor, " batch"]
    values: Float[Tensor, "batch *cell"]
    clean: Float[Tensor, " batch"]
    corrupt: Float[Tensor, " batch"]


def join_batches(
    n: int, parts: Iterable[BatchEffects]
) -> tuple[Float[Tensor, "prompt *cell"], Float[Tensor, " prompt"], Float[Tensor, " prompt"]]:
    """Effects, clean metric and corrupted metric of all n prompts, in their original order."""
    values, untouched = torch.zeros(0), torch.zeros(2, n)
    for part in parts:
        if not len(values):
            values = torch.zeros(n, *part.values.shape[1:])
        values[part.pairs] = part.values
        untouched[0, part.pairs], untouched[1, part.pairs] = part.clean, part.corrupt
    return values, untouched[0], untouched[1]


def score_batches(
    model: Model,
    prompts: Prompts,
    method: str,
    metric: Metric,
    parts: Iterable[BatchEffects],
    settings: Mapping[str, Any] | None = None,
    unit: str = "head",
) -> HeadEffects:
    """Join the effects of all batches into one result."""
    values, clean, corrupt = join_batches(len(prompts), parts)
    return HeadEffects(
        prompts.task,
        model_name(model),
        method,
        metric.name,
        values,
        clean,
        corrupt,
        settings or {},
        unit=unit,
    )
