"""Runs a model, observed and changed through its hooks, whichever kind of model it is."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechheads.errors import MechheadsError

from .backends.blocks import Block
from .backends.lens import SCALES
from .model import Model
from .wrap import lens_of

__all__ = [
    "SCALES",
    "attention_inside",
    "attention_parts",
    "blocks_of",
    "changed_mlp",
    "embed",
    "frozen_final_norm",
    "has_hooks",
    "layer_parts",
    "logits_at_end",
    "run_blocks",
    "state_of",
    "unembed",
    "unknown_part",
    "with_patterns",
]


def logits_at_end(
    model: Model, tokens: Int[Tensor, "row pos"], steps: int, pair_of: Int[Tensor, " row"]
) -> Float[Tensor, "row steps vocab"]:
    """Logits at the last `steps` positions; the other positions are not unembedded.

    Rows of one pair share all but their last steps - 1 tokens.
    """
    return lens_of(model).logits_at_end(tokens, steps, pair_of)


def with_patterns(
    model: Model,
    tokens: Int[Tensor, "row pos"],
    see: Callable[[int, Float[Tensor, "row head query key"]], None],
) -> None:
    """Run the tokens and pass every layer's attention pattern to `see(layer, pattern)`."""
    lens_of(model).with_patterns(tokens, see)


def unembed(
    model: Model,
    residual: Float[Tensor, "*rows d_model"],
    tokens: Int[Tensor, " some"] | None = None,
) -> Float[Tensor, "*rows some"]:
    """Logits of the given tokens, or of all, from the residual stream after the last layer."""
    return lens_of(model).unembed(residual, tokens)


def embed(model: Model, tokens: Int[Tensor, "row pos"]) -> Float[Tensor, "row pos d_model"]:
    """The residual stream that enters the first layer."""
    return lens_of(model).embed(tokens)


def attention_inside(
    model: Model, tokens: Int[Tensor, "row pos"]
) -> tuple[list[Float[Tensor, "row pos d_model"]], list[Float[Tensor, "row pos head d_head"]]]:
    """Run the tokens once and keep what enters every layer, and every head's z."""
    return lens_of(model).attention_inside(tokens)


def run_blocks(
    model: Model,
    entering: Float[Tensor, "row pos d_model"],
    start: int,
    layers: Sequence[int],
    change: Callable[[int, Float[Tensor, "row pos head d_head"]], Tensor],
    stop: int | None = None,
) -> Float[Tensor, "row pos d_model"]:
    """The residual stream that enters layer `stop`, from what enters layer `start`, with z changed.

    Without a `stop`, the residual stream after the last layer.
    """
    return lens_of(model).run_blocks(entering, start, layers, change, stop)


def attention_parts(
    model: Model,
    layer: int,
    entering: Float[Tensor, "row pos d_model"],
    replaced: Mapping[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """q, k, v, pattern and z of a layer, with the parts in `replaced` set to the given values.

    q and k are taken before rotary embeddings. Costs one block.
    """
    changes = {part: _constant(value) for part, value in (replaced or {}).items()}
    return lens_of(model).layer_parts(layer, entering, changes)


def layer_parts(
    model: Model,
    layer: int,
    entering: Float[Tensor, "row pos d_model"],
    changes: Mapping[str, Callable[[Tensor], Tensor]] | None = None,
) -> dict[str, Tensor]:
    """What happens inside a layer: attention, neurons, and "out", what leaves the layer.

    The parts are those of `lens.PARTS` that the layer has. Those in `changes` are changed where
    they arise, so that everything after them follows, also the `lens.SCALES`. Costs one block.
    """
    return lens_of(model).layer_parts(layer, entering, changes or {})


def gradient(model: Model, value: Float[Tensor, ""], given: Tensor) -> Tensor:
    """The gradient of a value that the model computed with respect to what it was given."""
    try:
        return torch.autograd.grad(value, given)[0]
    except RuntimeError as error:
        if "used in the graph" not in str(error) and "require grad" not in str(error):
            raise
        raise MechheadsError(
            f"{lens_of(model).name} passes no gradients back: its quantized weights only run "
            "forward on this device. Use the method patch, which needs none."
        ) from error


def has_hooks(model: Model) -> bool:
    """Whether the model has foreign hooks; those of edge gates are ours."""
    return lens_of(model).has_hooks()


def changed_mlp(
    model: Model, layer: int, change: Callable[[Float[Tensor, "row pos d_mlp"]], Tensor]
) -> AbstractContextManager[None]:
    """While active, act(pre) of a layer's MLP is changed; in a gated MLP, before the product."""
    return lens_of(model).changed_mlp(layer, change)


def state_of(model: Model) -> tuple[Hashable, ...] | None:
    """What changes with a model's config, or with a weight, in place too; None if nobody counts.

    Torch counts changes of a tensor, but not of one made in inference mode.
    """
    lens = lens_of(model)
    tensors = [*lens.model.parameters(), *lens.model.buffers()]
    tensors += [] if lens.gates is None else [lens.gates]
    if any(tensor.is_inference() for tensor in tensors):
        return None
    return repr(lens.model.cfg), *((tensor.data_ptr(), tensor._version) for tensor in tensors)


def unknown_part(model: Model) -> str | None:
    """A part of the model that the direct engine does not support; None if all are supported."""
    return lens_of(model).unknown_part()


def blocks_of(model: Model) -> list[Block]:
    """All layers as plain tensors and functions."""
    return lens_of(model).blocks()


def frozen_final_norm(model: Model) -> AbstractContextManager[None]:
    """While active, no gradient flows through the scale of the norm before the unembedding."""
    return lens_of(model).frozen_final_norm()


def _constant(value: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda _: value
