"""The layers of a TransformerBridge as plain tensors, from the transformers modules inside.

1. Weights and norms are read from the modules, without copies.
2. Masks, cos and sin are those that the model itself passes to its blocks (`bridge_runs`).
3. What is not known here leaves a model to its own blocks (`unknown_part`). The direct engine is
   held to hooked runs before it is used, so a block that computes something else is noticed.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from mechheads.errors import MechheadsError

from .activations import gelu_tanh
from .blocks import Block, neurons
from .bridge_runs import BridgeRuns, inner_of
from .lens import NORM_AFTER_HEADS, UNREADABLE, Shape
from .products import Linear, without_zeros

# Architectures whose blocks are computed differently.
OTHER = ("BloomForCausalLM", "OlmoeForCausalLM", *NORM_AFTER_HEADS)
UNSCALED = ("GPTNeoForCausalLM",)
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def unknown_part(model: Any, foreign_hooks: bool) -> str | None:
    """A part of a bridge that `plain_block` does not support; None if all are supported."""
    linears = [
        getattr(block.attn, part, None) for block in model.blocks for part in ("q", "k", "v", "o")
    ]
    config = getattr(inner_of(model.blocks[0].attn), "config", None)
    known = {
        "blocks of another kind": model.cfg.architecture not in OTHER,
        "clipped queries": getattr(config, "clip_qkv", None) is None,
        UNREADABLE: all(readable(part) is not None for part in linears),
        "layers on several devices": len({x.device for x in model.parameters()}) == 1,
        "foreign hooks": not foreign_hooks,
    }
    return next((part for part, is_known in known.items() if not is_known), None)


def plain_block(
    model: Any, layer: int, shape: Shape, runs: BridgeRuns, gate_bias: Tensor | None
) -> Block:
    """A layer as plain tensors and functions."""
    block, attention = model.blocks[layer], model.blocks[layer].attn
    original, longest, name = inner_of(attention), _lengths(model, shape), model.cfg.model_name
    q, k, v, out = (weights(getattr(attention, part), name) for part in ("q", "k", "v", "o"))
    divisor = 1 / float(getattr(original, "scaling", None) or shape.d_head**-0.5)

    def mask(queries: int, keys: int) -> Bool[Tensor, "query key"]:
        own = runs.called(_rounded(keys, longest))[layer].mask
        return _mask(original, own, keys, runs.device)[keys - queries :]

    def placer(part: str) -> Callable[[Tensor, int], Tensor]:
        norm = getattr(attention, f"{part}_norm", None)
        norm = None if norm is None else inner_of(norm)

        def place(x: Tensor, offset: int) -> Tensor:
            x = x if norm is None else norm(x)
            here = slice(offset, offset + x.shape[1])
            if (table := getattr(original, "embed_positions", None)) is not None:  # GPT-J
                return _rotated_pairs(x, table[here])
            call = runs.called(_rounded(here.stop, longest))[layer]
            found = call.kwargs.get("position_embeddings")
            return x if found is None else _rotated(x, found[0][:, here], found[1][:, here])

        return place

    return Block(
        shape.d_head,
        q,
        k,
        v,
        out,
        plain_norm(block.ln1),
        _mlp(block),
        placer("q"),
        placer("k"),
        mask,
        1.0 if model.cfg.architecture in UNSCALED else divisor,
        parallel=bool(model.cfg.parallel_attn_mlp),
        has_mlp=hasattr(block, "mlp"),
        gate_bias=gate_bias,
    )


def readable(component: Any) -> Linear | None:
    """A linear layer as a matrix [into, out] and a bias; None if it is not a plain one.

    That is so if it is quantized, has an adapter, or is offloaded by accelerate.
    """
    inner = inner_of(component)
    transposed = type(inner).__name__ == "Conv1D"  # transformers' own stores [into, out]
    if not transposed and type(inner) is not torch.nn.Linear:
        return None
    weight, bias = inner.weight, inner.bias
    if type(weight.data) is not Tensor or weight.is_meta or weight.dtype not in FLOATS:
        return None
    matrix = weight if transposed else weight.T
    return matrix, weight.new_zeros(matrix.shape[1]) if bias is None else bias


def weights(component: Any, name: str) -> Linear:
    """The same; raises if it cannot be read."""
    found = readable(component)
    if found is None:
        raise MechheadsError(
            f"The weights of {name} cannot be read: they are quantized, have an adapter, or are "
            "offloaded. Use the method patch, which runs the model's own blocks, or load the model "
            "without that."
        )
    return found


def plain_norm(component: Any) -> Callable[[Tensor], Tensor]:
    """A norm without hooks, in one fused call where it is a usual RMS norm."""
    inner = inner_of(component)
    eps = getattr(inner, "variance_epsilon", None)
    if eps is None or "Gemma" in type(inner).__name__ or not hasattr(inner, "weight"):
        return inner
    return lambda x: F.rms_norm(x, x.shape[-1:], inner.weight, eps)


def activation(mlp: Any) -> Callable[[Tensor], Tensor] | None:
    """The activation function of an MLP; None if it cannot be found."""
    inner = inner_of(mlp)
    for name in ("act_fn", "act", "activation_fn"):
        found: Any = getattr(inner, name, None)
        if found is not None:
            if type(found).__name__ in ("NewGELUActivation", "PytorchGELUTanh", "GELUTanh"):
                return gelu_tanh
            act: Callable[[Tensor], Tensor] = found
            return act
    return None


def _mlp(block: Any) -> Callable[[Tensor], Tensor]:
    """The MLP with its norm, from its weights if they are those of a plain or gated one."""
    mlp = getattr(block, "mlp", None)
    if mlp is None:
        return torch.zeros_like
    # Parallel blocks may have a single norm for heads and MLP.
    norm = plain_norm(getattr(block, "ln2", None) or block.ln1)
    act = activation(mlp) or activation(block)
    parts = {name: getattr(mlp, name, None) for name in ("gate", "in", "out")}
    found = {name: readable(part) for name, part in parts.items() if part is not None}
    read = {name: part for name, part in found.items() if part is not None}
    known = type(mlp).__name__ in ("MLPBridge", "GatedMLPBridge") and len(read) == len(found)
    if act is None or not known:

        def by_itself(residual: Tensor) -> Tensor:
            out = mlp(norm(residual).flatten(0, -3))
            return (out[0] if isinstance(out, tuple) else out).view(residual.shape)

        return by_itself

    into, out = without_zeros(read["in"]), without_zeros(read["out"])
    gate = without_zeros(read["gate"]) if "gate" in read else None
    return lambda x: neurons(norm(x), act, into, out, gate)


def _mask(original: Any, given: Tensor | None, keys: int, place: torch.device) -> Tensor:
    """Where queries may attend: what the model passes to the block, and what the block adds."""
    allowed = torch.ones(keys, keys, dtype=torch.bool, device=place).tril()
    own = getattr(original, "bias", None)  # GPT-Neo's local attention
    if isinstance(own, Tensor) and own.dtype == torch.bool and own.dim() == 4:
        allowed = allowed & own[0, 0, :keys, :keys]
    if given is None:
        return allowed
    here = given[0, 0, :keys, :keys]
    return allowed & (here if here.dtype == torch.bool else here > -1)


def _lengths(model: Any, shape: Shape) -> tuple[int, ...]:
    """The lengths up to which positions rotate in the same way, and the longest input."""
    config = getattr(inner_of(model.blocks[0].attn), "config", None)
    rope = getattr(config, "rope_parameters", None) or {}
    change = rope.get("original_max_position_embeddings")
    return (change, shape.context) if isinstance(change, int) else (shape.context,)


def _rounded(positions: int, longest: tuple[int, ...]) -> int:
    """The next power of two, so that few lengths have to be recorded, but not over a limit."""
    limits = [limit for limit in longest if limit >= positions]
    return min([max(8, 1 << (positions - 1).bit_length()), *limits]) if limits else positions


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Float[Tensor, "row pos head d_head"]:
    """Rotary positions as most transformers models apply them: halves, in a part of each head."""
    size = cos.shape[-1]
    turned, rest = x[..., :size], x[..., size:]
    one, two = turned.chunk(2, dim=-1)
    cos, sin = (part[:, :, None].to(x) for part in (cos, sin))
    turned = turned * cos + torch.cat([-two, one], dim=-1) * sin
    return torch.cat([turned, rest], dim=-1) if rest.shape[-1] else turned


def _rotated_pairs(
    x: Tensor, table: Float[Tensor, "pos size"]
) -> Float[Tensor, "row pos head d_head"]:
    """Rotary positions as GPT-J applies them: neighbours in a part of each head."""
    size = table.shape[-1]
    sin, cos = (part.repeat_interleave(2, -1)[:, None] for part in table.to(x).chunk(2, -1))
    turned, rest = x[..., :size], x[..., size:]
    swapped = torch.stack((-turned[..., 1::2], turned[..., ::2]), dim=-1).flatten(-2)
    return torch.cat([turned * cos + swapped * sin, rest], dim=-1)
