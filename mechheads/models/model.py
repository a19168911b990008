"""The model as the rest of mechheads sees it: its name, its sizes, its tokenizer, its device."""

from dataclasses import dataclass
from functools import cached_property

import torch
from transformer_lens import HookedTransformer

from mechheads.prompts.encoder import Encoder

Model = HookedTransformer


@dataclass(frozen=True)
class Shape:
    """The sizes of a model; `kv_heads` equals `heads` if every head has its own keys and values."""

    layers: int
    heads: int
    kv_heads: int
    d_head: int
    d_model: int
    vocabulary: int
    context: int

    @cached_property
    def every_head(self) -> list[tuple[int, int]]:
        """All heads as (layer, head), in order."""
        return [(layer, head) for layer in range(self.layers) for head in range(self.heads)]

    @property
    def grid(self) -> tuple[int, int]:
        """(layers, heads), the shape of a table with a cell per head."""
        return self.layers, self.heads


def shape_of(model: Model) -> Shape:
    """The sizes of a model."""
    cfg = model.cfg
    return Shape(
        cfg.n_layers,
        cfg.n_heads,
        cfg.n_key_value_heads or cfg.n_heads,
        cfg.d_head,
        cfg.d_model,
        cfg.d_vocab,
        cfg.n_ctx,
    )


def mlp_shape(model: Model) -> tuple[int, bool]:
    """The width of the MLPs (0 if there are none), and whether they are gated."""
    return model.cfg.d_mlp or 0, model.cfg.gated_mlp


def model_name(model: Model) -> str:
    """The name the model was loaded by."""
    return model.cfg.model_name


def encoder_of(model: Model) -> Encoder:
    """How the model turns text into tokens."""
    cfg = model.cfg
    return Encoder(
        cfg.model_name, model.tokenizer, cfg.default_prepend_bos, cfg.n_ctx, cfg.d_vocab_out
    )


def device_of(model: Model) -> torch.device:
    """The device that takes the input tokens."""
    return model.W_E.device


def dtype_of(model: Model) -> torch.dtype:
    """The dtype the model computes in."""
    return model.W_E.dtype


def is_gated(model: Model) -> bool:
    """Whether the model is sparse: its attention goes through edge gates."""
    return hasattr(model, "edge_gates")


def norm_after_heads(model: Model) -> bool:
    """Whether there is a norm between heads and residual stream: no head writes directly."""
    return model.cfg.use_normalization_before_and_after or model.cfg.original_architecture in (
        "Olmo2ForCausalLM",
        "Olmo3ForCausalLM",
    )


def caps_logits(model: Model) -> bool:
    """Whether the logits are soft-capped."""
    return (model.cfg.output_logits_soft_cap or 0) > 0


def parallel_blocks(model: Model) -> bool:
    """Whether the attention and MLP of a layer read the same residual stream."""
    return model.cfg.parallel_attn_mlp
