"""The weights through which heads read and write, and the direction of a logit difference."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .model import Model


def output_weights(model: Model, layer: int) -> Float[Tensor, "head d_head d_model"]:
    """W_O of one layer. Not model.W_O: that copies the weights of all layers."""
    block: Any = model.blocks[layer]
    return block.attn.W_O


def input_weights(model: Model, layer: int, part: str) -> Float[Tensor, "head d_model d_head"]:
    """W_Q, W_K or W_V of one layer, by letter."""
    block: Any = model.blocks[layer]
    return getattr(block.attn, f"W_{part.upper()}")


def through_first_norm(
    model: Model,
    layer: int,
    entering: Float[Tensor, "row pos d_model"],
    slopes: Float[Tensor, "head row pos d_model"],
) -> Float[Tensor, "head row pos d_model"]:
    """Map gradients of what a layer's heads read back through the norm before them."""
    block: Any = model.blocks[layer]
    pull: Any = torch.func.vjp(block.ln1, entering)[1]
    return torch.vmap(pull)(slopes)[0]


def unembedding_columns(
    model: Model, tokens: Int[Tensor, "*rows"]
) -> Float[Tensor, "*rows d_model"]:
    """The columns of W_U for the tokens."""
    return model.W_U.T[tokens.to(model.W_U.device)]


def through_final_norm(
    model: Model,
    along: Float[Tensor, "batch d_model"],
    end: Float[Tensor, "batch d_model"],
) -> Float[Tensor, "batch d_model"]:
    """Map a direction after the final norm back through it, with its scale fixed at `end`."""
    kind = model.cfg.normalization_type
    if kind is None:
        return along
    along = along * getattr(model.ln_final, "w", 1.0)
    centred = kind.startswith("LN")
    inner = end - end.mean(-1, keepdim=True) if centred else end
    scale = (inner.pow(2).mean(-1, keepdim=True) + model.cfg.eps).sqrt()
    along = along / scale
    return along - along.mean(-1, keepdim=True) if centred else along
