"""Direct logit attribution: what each head writes straight towards the answers.

The logit difference is linear in the residual stream at the end once the final norm's scale is held
as it is. A head's share is its write, seen along the direction that tells the right from the wrong
answers; what later layers make of it does not count.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.engine.cached_run import Engine, measure
from mechheads.engine.interventions import unchanged
from mechheads.engine.select import budget_for, engine_for
from mechheads.errors import MechheadsError
from mechheads.metrics import METRICS, Metric
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
    metric: str | None = None,
    *,
    budget: int | None = None,
    quiet: bool = False,
) -> HeadEffects:
    """Each head's own part of the clean logit difference, in nats; positive: towards the answer.

    Two forward passes for all heads. Always of the logit difference, with answers of one token.
    """
    _check(model, metric)
    wanted = METRICS["logit_diff"]

    def parts() -> Iterator[BatchEffects]:
        engine, size = engine_for(model), budget_for(model, budget)
        with bar(len(prompts), "Prompts", quiet) as progress:
            for batch in batches(encoder_of(model), prompts, max_tokens=size):
                if batch.steps > 1:
                    raise MechheadsError(
                        f"Answers of {prompts.task} have up to {batch.steps} tokens here; direct "
                        "logit attribution is linear for one token only. Use attribution or patch."
                    )
                yield _share(model, engine, batch, wanted)
                progress.update(len(batch.pairs))

    return score_batches(model, prompts, "direct", wanted, parts())


def _share(model: Model, engine: Engine, batch: Batch, metric: Metric) -> BatchEffects:
    """What each head writes along the direction of the answers, in the clean run."""
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


def _check(model: Model, metric: str | None) -> None:
    if metric not in (None, "logit_diff"):
        raise MechheadsError(f"direct is of logit_diff, not of {metric}. Leave the metric out.")
    if caps_logits(model):
        raise MechheadsError(
            f"{model_name(model)} caps its logits, so no head's part of them is known. Use "
            "attribution or patch."
        )
    check_writes(model)


def check_writes(model: Model) -> None:
    """An error where heads have no write of their own."""
    if norm_after_heads(model):
        raise MechheadsError(
            f"{model_name(model)} has a norm between its heads and the residual stream, so that "
            "heads have no write of their own. Use attribution or patch."
        )


def _direction(
    model: Model, end: Float[Tensor, "batch d_model"], batch: Batch
) -> Float[Tensor, "batch d_model"]:
    """What tells the answers from the wrong ones, taken back through the final norm."""
    real = batch.choices[:, :, 0] >= 0
    right = batch.right & real
    wrong = ~batch.right & real
    weight = right / right.sum(1, keepdim=True) - wrong / wrong.sum(1, keepdim=True)
    columns = unembedding_columns(model, batch.choices[:, :, 0].clamp(min=0))
    along = torch.einsum("bc,bcd->bd", weight.to(columns), columns)
    return through_final_norm(model, along, end)
