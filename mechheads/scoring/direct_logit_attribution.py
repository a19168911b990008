"""Direct logit attribution: what each head writes directly towards the answers.

With the scale of the final norm held fixed, the logit difference is linear in the final residual
stream. A head's share is its write projected onto the direction that separates right from wrong
answers; effects through later layers do not count.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.engine.cached_run import Engine, measure
from mechheads.engine.interventions import unchanged
from mechheads.engine.select import budget_for, engine_for
from mechheads.errors import MechheadsError
from mechheads.metrics import Metric, MetricLike, choose, find
from mechheads.models.model import (
    Model,
    caps_logits,
    encoder_of,
    model_name,
    norm_after_heads,
    shape_of,
)
from mechheads.models.weights import output_weights, through_final_norm, unembedding_columns
from mechheads.progress import bar
from mechheads.prompts import Prompts
from mechheads.prompts.batches import Batch, batches

from .batching import BatchEffects, score_batches
from .effects import HeadEffects


@torch.inference_mode()
def direct(
    model: Model,
    prompts: Prompts,
    metric: MetricLike | None = None,
    *,
    budget: int | None = None,
    quiet: bool = False,
) -> HeadEffects:
    """Each head's direct contribution to the clean logit difference, in nats.

    Positive: towards the answer. Two forward passes for all heads together. The metric is always
    the logit difference, and answers must be single tokens.
    """
    _check(model, metric)
    wanted = choose("logit_diff", prompts)

    def parts() -> Iterator[BatchEffects]:
        engine, size = engine_for(model), budget_for(model, budget)
        with bar(len(prompts), "Prompts", quiet) as progress:
            for batch in batches(encoder_of(model), prompts, max_tokens=size):
                if batch.steps > 1:
                    raise MechheadsError(
                        f"Answers of {prompts.task} have up to {batch.steps} tokens here, but "
                        "direct logit attribution takes single tokens. Use attribution or patch."
                    )
                yield _share(model, engine, batch, wanted)
                progress.update(len(batch.pairs))

    return score_batches(model, prompts, "direct", wanted, parts())


def _share(model: Model, engine: Engine, batch: Batch, metric: Metric) -> BatchEffects:
    """Each head's write along the answer direction, in the clean run."""
    shape = shape_of(model)
    runs = [engine.cache(tokens, 0, 1) for tokens in (batch.clean, batch.corrupt)]
    ends = [engine.rerun(run, unchanged(shape)) for run in runs]
    clean, corrupt = (measure(model, end, batch, metric)[0] for end in ends)
    along = _direction(model, ends[0][0, :, 0], batch)
    values = torch.zeros(len(batch.pairs), *shape.grid)
    for layer, z in enumerate(runs[0].z):
        writes = output_weights(model, layer) @ along.T
        values[:, layer] = torch.einsum("bhd,hdb->bh", z[:, -1], writes).float().cpu()
    return BatchEffects(batch.pairs, values, clean, corrupt)


def _check(model: Model, metric: MetricLike | None) -> None:
    if metric is not None and find(metric).name != "logit_diff":
        raise MechheadsError(
            f"direct scores logit_diff only, not {find(metric).name}. Leave the metric out."
        )
    if caps_logits(model):
        raise MechheadsError(
            f"{model_name(model)} soft-caps its logits, so they are not a sum over heads. Use "
            "attribution or patch."
        )
    check_writes(model)


def check_writes(model: Model) -> None:
    """Raise if heads do not write to the residual stream directly."""
    if norm_after_heads(model):
        raise MechheadsError(
            f"{model_name(model)} has a norm between its heads and the residual stream, so heads "
            "do not write to it directly. Use attribution or patch."
        )


def _direction(
    model: Model, end: Float[Tensor, "batch d_model"], batch: Batch
) -> Float[Tensor, "batch d_model"]:
    """The direction from wrong to right answers, mapped back through the final norm."""
    real = batch.choices[:, :, 0] >= 0
    right = batch.right & real
    wrong = ~batch.right & real
    weight = right / right.sum(1, keepdim=True) - wrong / wrong.sum(1, keepdim=True)
    columns = unembedding_columns(model, batch.choices[:, :, 0].clamp(min=0))
    along = torch.einsum("bc,bcd->bd", weight.to(columns), columns)
    return through_final_norm(model, along, end)
