"""Direct logit attribution: what each head writes straight towards the answers.

The logit difference is linear in the residual stream at the end once the final norm's scale is held
as it is. A head's share is its write, seen along the direction that tells the right from the wrong
answers; what later layers make of it does not count.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.engine.interventions import budget_for, engine_for, measure, unchanged
from mechheads.errors import MechheadsError
from mechheads.metrics.token import METRICS
from mechheads.models.load import Model, norm_after_heads
from mechheads.progress import bar
from mechheads.prompts.batches import Batch, batches
from mechheads.prompts import Prompts

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
    engine, wanted = engine_for(model), METRICS["logit_diff"]
    values = torch.zeros(len(prompts), model.cfg.n_layers, model.cfg.n_heads)
    untouched = torch.zeros(2, len(prompts))
    with bar(len(prompts), "Prompts", quiet) as progress:
        for batch in batches(model, prompts, max_tokens=budget_for(model, budget)):
            if batch.steps > 1:
                raise MechheadsError(
                    f"Answers of {prompts.task} have up to {batch.steps} tokens here; direct "
                    "attribution is linear for one only. Use attribution or patch."
                )
            for side, tokens in enumerate((batch.clean, batch.corrupt)):
                run = engine.remember(tokens, 0, 1)
                end = engine.resume(run, unchanged(model))
                untouched[side, batch.pairs] = measure(model, end, batch, wanted)[0]
                if side == 0:
                    along = _direction(model, end[0, :, 0], batch)
                    for layer, z in enumerate(run.z):
                        block: Any = model.blocks[layer]
                        writes = block.attn.W_O @ along.T
                        share = torch.einsum("bhd,hdb->bh", z[:, -1], writes)
                        values[batch.pairs, layer] = share.float().cpu()
            progress.update(len(batch.pairs))
    return HeadEffects(
        prompts.task,
        model.cfg.model_name,
        "direct",
        wanted.name,
        values,
        untouched[0],
        untouched[1],
    )


def _check(model: Model, metric: str | None) -> None:
    if metric not in (None, "logit_diff"):
        raise MechheadsError(f"direct is of logit_diff, not of {metric}. Leave the metric out.")
    if (model.cfg.output_logits_soft_cap or 0) > 0:
        raise MechheadsError(
            f"{model.cfg.model_name} caps its logits, so no head's part of them is known. Use "
            "attribution or patch."
        )
    check_writes(model)


def check_writes(model: Model) -> None:
    """An error where heads have no write of their own."""
    if norm_after_heads(model):
        raise MechheadsError(
            f"{model.cfg.model_name} has a norm between its heads and the residual stream, so that "
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
    columns = model.W_U.T[batch.choices[:, :, 0].clamp(min=0).to(model.W_U.device)]
    along = torch.einsum("bc,bcd->bd", weight.to(columns), columns)
    kind = model.cfg.normalization_type
    if kind is None:
        return along
    along = along * getattr(model.ln_final, "w", 1.0)
    centred = kind.startswith("LN")
    inner = end - end.mean(-1, keepdim=True) if centred else end
    scale = (inner.pow(2).mean(-1, keepdim=True) + model.cfg.eps).sqrt()
    along = along / scale
    return along - along.mean(-1, keepdim=True) if centred else along
