"""The model as the rest of mechheads sees it: its name, its sizes, its tokenizer, its device."""

import re

import torch

from mechheads.prompts.encoder import Encoder

from .backends.lens import Shape
from .wrap import lens_of

__all__ = [
    "Model",
    "Shape",
    "caps_logits",
    "device_of",
    "dtype_of",
    "encoder_of",
    "family_of",
    "is_gated",
    "mlp_shape",
    "model_name",
    "norm_after_heads",
    "parallel_blocks",
    "shape_of",
]

# A HookedTransformer, a TransformerBridge or a transformers model.
Model = torch.nn.Module


def shape_of(model: Model) -> Shape:
    """The sizes of a model."""
    return lens_of(model).shape


def mlp_shape(model: Model) -> tuple[int, bool]:
    """The width of the MLPs (0 if there are none), and whether they are gated."""
    traits = lens_of(model).traits
    return traits.d_mlp, traits.gated_mlp


def family_of(model: Model) -> str:
    """The family of a model by its architecture: Llama, Qwen, Gemma, GPT and so on, or empty."""
    return re.split(r"\d|For|LMHead", lens_of(model).traits.architecture)[0]


def model_name(model: Model) -> str:
    """The model's short name, for titles and sentences: the last part of a path or hub id."""
    return lens_of(model).name


def encoder_of(model: Model) -> Encoder:
    """How the model turns text into tokens."""
    return lens_of(model).encoder


def device_of(model: Model) -> torch.device:
    """The device that takes the input tokens."""
    return lens_of(model).device


def dtype_of(model: Model) -> torch.dtype:
    """The dtype the model computes in."""
    return lens_of(model).dtype


def is_gated(model: Model) -> bool:
    """Whether the model is sparse: its attention goes through edge gates."""
    return lens_of(model).gates is not None


def norm_after_heads(model: Model) -> bool:
    """Whether there is a norm between heads and residual stream: no head writes directly."""
    return lens_of(model).traits.norm_after_heads


def caps_logits(model: Model) -> bool:
    """Whether the logits are soft-capped."""
    return lens_of(model).traits.caps_logits


def parallel_blocks(model: Model) -> bool:
    """Whether the attention and MLP of a layer read the same residual stream."""
    return lens_of(model).traits.parallel_blocks
