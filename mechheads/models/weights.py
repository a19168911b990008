"""The weights through which heads read and write, and the direction of a logit difference."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .model import Model
from .wrap import lens_of


def output_weights(model: Model, layer: int) -> Float[Tensor, "head d_head d_model"]:
    """W_O of one layer."""
    return lens_of(model).output_weights(layer)


def unembedding_columns(
    model: Model, tokens: Int[Tensor, "*rows"]
) -> Float[Tensor, "*rows d_model"]:
    """The columns of W_U for the tokens."""
    weight = lens_of(model).unembedding()
    return weight.T[tokens.to(weight.device)]


def through_final_norm(
    model: Model,
    along: Float[Tensor, "batch d_model"],
    end: Float[Tensor, "batch d_model"],
) -> Float[Tensor, "batch d_model"]:
    """Map a direction after the final norm back through it, with its scale fixed at `end`.

    With its scale fixed a norm is linear, x -> w * x / scale, after removing the mean in a layer
    norm. What it does to a few vectors shows w and scale, however the model computes them.
    """
    norm = lens_of(model).final_norm()
    if norm is None:
        return along
    centred = _removes_mean(norm, end)
    probe = torch.ones_like(end[:1])
    probe[:, ::2] = -1.0
    shift = norm(torch.zeros_like(probe))
    weight, inner = (norm(probe) - shift) / _inner(probe, centred), _inner(end, centred)
    # The largest entry of each row shows its scale without rounding errors.
    at = (inner * weight).abs().argmax(-1, keepdim=True)
    scale = (norm(end) - shift).gather(-1, at) / (inner * weight).gather(-1, at)
    along = along * weight * scale
    return along - along.mean(-1, keepdim=True) if centred else along


def _inner(x: Float[Tensor, "batch d_model"], centred: bool) -> Float[Tensor, "batch d_model"]:
    return x - x.mean(-1, keepdim=True) if centred else x


def _removes_mean(norm: Any, end: Float[Tensor, "batch d_model"]) -> bool:
    """Whether adding a constant to all entries changes nothing: a layer norm, not an RMS norm."""
    one, two = norm(end[:1]), norm(end[:1] + end.abs().mean())
    return bool((one - two).abs().max() <= 1e-3 * one.abs().max())
