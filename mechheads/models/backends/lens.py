"""The protocol of a model: sizes and conventions, runs observed and changed by hooks, weights.

Every hook lives inside one call and is removed when it returns or raises.
"""

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechheads.prompts.encoder import Encoder

from .blocks import Block

# What `layer_parts` sees of a layer, and its hook point. Scores are what the softmax takes; pre and
# pre_linear (of a gated MLP) are what an MLP's neurons take, post is what they put out.
PARTS = {
    "q": "attn.hook_q",
    "k": "attn.hook_k",
    "v": "attn.hook_v",
    "scores": "attn.hook_attn_scores",
    "pattern": "attn.hook_pattern",
    "z": "attn.hook_z",
    "pre": "mlp.hook_pre",
    "pre_linear": "mlp.hook_pre_linear",
    "post": "mlp.hook_post",
}
# The divisors of a layer's norms: seen only where they are changed.
SCALES = {"first_scale": "ln1.hook_scale", "second_scale": "ln2.hook_scale"}
GATES = "edge_gates"  # the attribute of a sparse model that holds its gates
UNREADABLE = "weights that cannot be read"  # an `unknown_part`
# Architectures with a norm between heads and residual stream: no head writes to it directly.
NORM_AFTER_HEADS = (
    "Olmo2ForCausalLM",
    "Olmo3ForCausalLM",
    "Gemma2ForCausalLM",
    "Gemma3ForCausalLM",
)
Residual = Float[Tensor, "row pos d_model"]
Z = Float[Tensor, "row pos head d_head"]


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


@dataclass(frozen=True)
class Traits:
    """What kind of model it is; `d_mlp` is 0 if there are no MLPs.

    `architecture` is the name of its class in transformers, empty if it has none.
    """

    d_mlp: int
    gated_mlp: bool
    parallel_blocks: bool
    norm_after_heads: bool
    caps_logits: bool
    architecture: str = ""


@runtime_checkable
class Lens(Protocol):
    """A model as the engines and observers see it."""

    @property
    def model(self) -> Any:
        """The HookedTransformer or TransformerBridge."""
        ...

    @property
    def backend(self) -> str:
        """The name of its kind: hooked or bridge."""
        ...

    @property
    def name(self) -> str:
        """The short name, for titles and sentences."""
        ...

    @property
    def shape(self) -> Shape:
        """The sizes."""
        ...

    @property
    def traits(self) -> Traits:
        """What kind of model it is."""
        ...

    @property
    def encoder(self) -> Encoder:
        """How text becomes tokens."""
        ...

    @property
    def gates(self) -> Float[Tensor, "layer head"] | None:
        """The biases of a sparse model's edge gates; None if it is not sparse."""
        ...

    @property
    def device(self) -> torch.device:
        """The device that takes the input tokens."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """The dtype the model computes in."""
        ...

    def embed(self, tokens: Int[Tensor, "row pos"]) -> Residual:
        """The residual stream that enters the first layer."""
        ...

    def unembed(
        self, residual: Float[Tensor, "*rows d_model"], tokens: Int[Tensor, " some"] | None
    ) -> Float[Tensor, "*rows some"]:
        """Logits of the given tokens, or of all, from the residual stream after the last layer."""
        ...

    def logits_at_end(
        self, tokens: Int[Tensor, "row pos"], steps: int, pair_of: Int[Tensor, " row"]
    ) -> Float[Tensor, "row steps vocab"]:
        """Logits at the last `steps` positions; the other positions are not unembedded."""
        ...

    def with_patterns(
        self,
        tokens: Int[Tensor, "row pos"],
        see: Callable[[int, Float[Tensor, "row head query key"]], None],
    ) -> None:
        """Run the tokens and pass every layer's attention pattern to `see(layer, pattern)`."""
        ...

    def attention_inside(self, tokens: Int[Tensor, "row pos"]) -> tuple[list[Residual], list[Z]]:
        """Run the tokens once and keep what enters every layer, and every head's z."""
        ...

    def run_blocks(
        self,
        entering: Residual,
        start: int,
        layers: Sequence[int],
        change: Callable[[int, Z], Tensor],
        stop: int | None = None,
    ) -> Residual:
        """The residual stream after the last layer (or entering `stop`), with z changed."""
        ...

    def layer_parts(
        self, layer: int, entering: Residual, changes: Mapping[str, Callable[[Tensor], Tensor]]
    ) -> dict[str, Tensor]:
        """The parts of a layer that it has, with some changed, and "out", what leaves it."""
        ...

    def changed_mlp(
        self, layer: int, change: Callable[[Float[Tensor, "row pos d_mlp"]], Tensor]
    ) -> AbstractContextManager[None]:
        """While active, act(pre) of a layer's MLP is changed."""
        ...

    def output_weights(self, layer: int) -> Float[Tensor, "head d_head d_model"]:
        """W_O of one layer."""
        ...

    def final_norm(self) -> Callable[[Tensor], Tensor] | None:
        """The norm before the unembedding, without hooks; None if there is none."""
        ...

    def frozen_final_norm(self) -> AbstractContextManager[None]:
        """While active, no gradient flows through the scale of the norm before the unembedding."""
        ...

    def unembedding(self) -> Float[Tensor, "d_model vocab"]:
        """W_U."""
        ...

    def has_hooks(self) -> bool:
        """Whether the model has foreign hooks; those of edge gates are ours."""
        ...

    def unknown_part(self) -> str | None:
        """A part of the model that `blocks` does not support; None if all are supported."""
        ...

    def blocks(self) -> list[Block]:
        """All layers as plain tensors and functions."""
        ...


def layer_hooks(
    points: Mapping[str, Any],
    layer: int,
    changes: Mapping[str, Callable[[Tensor], Tensor]],
    kept: dict[str, Tensor],
) -> list[tuple[str, Callable[..., Tensor]]]:
    """Hooks that keep the parts of a layer in `kept`, after changing some."""

    def hook_for(part: str) -> Callable[..., Tensor]:
        def hook(value: Tensor, hook: Any) -> Tensor:
            kept[part] = changes[part](value) if part in changes else value
            return kept[part]

        return hook

    seen = PARTS | {part: SCALES[part] for part in SCALES if part in changes}
    names = {part: f"blocks.{layer}.{point}" for part, point in seen.items()}
    return [(name, hook_for(part)) for part, name in names.items() if name in points]


@contextlib.contextmanager
def frozen_scale(model: Any) -> Iterator[None]:
    """While active, the scale of the final norm is a constant for gradients."""

    def hook(value: Tensor, hook: Any) -> Tensor:
        return value.detach()

    name = "ln_final.hook_scale"
    with changed_scales(), model.hooks([(name, hook)] if name in model.hook_dict else []):
        yield


@contextlib.contextmanager
def changed_scales() -> Iterator[None]:
    """While active, TransformerLens does not warn that a changed scale costs the last digits."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "A forward hook edited hook_scale", UserWarning)
        yield
