"""A layer as plain tensors and functions, without hooks.

Supports sequential and parallel blocks, norms before attention and MLP, any positions that rotate
queries and keys or were added to the embedding, grouped-query attention, local attention, norms of
queries and keys, soft-capped scores, and edge gates. Weights are not copied where they can be
viewed as matrices.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from mechheads.models import edge_gates

from .products import Linear, linear

# Bytes of neurons at once. Allocators return large blocks to the system, and getting them again
# costs a tenth of a wide MLP; smaller pieces also stay in the processor's cache.
PIECE = 14 << 20


@dataclass(frozen=True)
class Block:
    """One layer: its norms, the weights of its heads as matrices, and its MLP.

    `norm` comes before the heads; `mlp` includes its own norm. `place_q` and `place_k` apply norms
    and rotary positions from an offset on. `mask(queries, keys)` is true where the last queries may
    attend; scores are divided by `divisor`. In `parallel` blocks, attention and MLP read the same
    residual stream.
    """

    d_head: int
    q: Linear
    k: Linear
    v: Linear
    out: Linear
    norm: Callable[[Tensor], Tensor]
    mlp: Callable[[Tensor], Tensor]
    place_q: Callable[[Tensor, int], Tensor]
    place_k: Callable[[Tensor, int], Tensor]
    mask: Callable[[int, int], Bool[Tensor, "query key"]]
    divisor: float
    cap: float = 0.0
    parallel: bool = False
    has_mlp: bool = True
    gate_bias: Float[Tensor, " head"] | None = None

    def attention_input(
        self, residual: Float[Tensor, "*rows pos d_model"]
    ) -> Float[Tensor, "*rows pos d_model"]:
        """What the heads read: the residual stream after the first norm."""
        return self.norm(residual)

    def queries(
        self, x: Float[Tensor, "row pos d_model"], offset: int
    ) -> Float[Tensor, "row pos head d_head"]:
        """Queries at positions from `offset` on."""
        return self.place_q(self.raw(x, self.q), offset)

    def keys_values(
        self, x: Float[Tensor, "row pos d_model"], offset: int
    ) -> tuple[Float[Tensor, "row pos kv_head d_head"], Float[Tensor, "row pos kv_head d_head"]]:
        """Keys and values at positions from `offset` on."""
        return self.place_k(self.raw(x, self.k), offset), self.raw(x, self.v)

    def raw(
        self, x: Float[Tensor, "row pos d_model"], weights: Linear
    ) -> Float[Tensor, "row pos head d_head"]:
        """Queries, keys or values before norms and positions."""
        return linear(x, *weights).unflatten(2, (-1, self.d_head))

    def split(
        self, x: Float[Tensor, "head row pos d_model"], weights: Linear
    ) -> Float[Tensor, "row pos head d_head"]:
        """The same, if every head reads an input of its own."""
        weight, bias = (part.unflatten(-1, (-1, self.d_head)) for part in weights)
        found = x.flatten(1, 2) @ weight.movedim(1, 0) + bias[:, None]
        return found.unflatten(1, x.shape[1:3]).movedim(0, 2)

    def write(
        self, z: Float[Tensor, "*rows pos head d_head"]
    ) -> Float[Tensor, "*rows pos d_model"]:
        """What all heads together add to the residual stream."""
        return linear(z.flatten(-2), *self.out)

    def attend(
        self,
        q: Float[Tensor, "row query head d_head"],
        k: Float[Tensor, "row key kv_head d_head"],
        v: Float[Tensor, "row key kv_head d_head"],
    ) -> Float[Tensor, "row query head d_head"]:
        """z at the last positions, one per query."""
        mask = self.mask(q.shape[1], k.shape[1])
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        if self.gate_bias is None and self.cap <= 0:
            z = F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, scale=1 / self.divisor, enable_gqa=q.shape[1] != k.shape[1]
            )
            return z.transpose(1, 2)
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
        scores = q @ k.mT / self.divisor
        if self.cap > 0:
            scores = self.cap * torch.tanh(scores / self.cap)
        scores = scores.masked_fill(~mask, -torch.inf)
        pattern = scores.softmax(-1)
        if self.gate_bias is not None:
            pattern = pattern * (edge_gates.gate_logits(scores, self.gate_bias.to(scores)) > 0)
        return (pattern @ v).transpose(1, 2)


def neurons(
    x: Float[Tensor, "*rows d_model"],
    act: Callable[[Tensor], Tensor],
    into: tuple[Tensor, Tensor | None],
    out: tuple[Tensor, Tensor | None],
    gate: tuple[Tensor, Tensor | None] | None = None,
    shift: Float[Tensor, " d_mlp"] | None = None,
) -> Float[Tensor, "*rows d_model"]:
    """An MLP: act(x W_in) W_out, or (act(x W_gate) * (x W_in) + shift) W_out, without its norm.

    Without gradients on a CPU, wide ones are computed in pieces of rows, and in place.
    """
    rows = x.flatten(0, -2)
    plain = not torch.is_grad_enabled() and x.device.type == "cpu"

    def some(rows: Float[Tensor, "row d_model"]) -> Float[Tensor, "row d_mlp"]:
        if gate is None:
            return act(linear(rows, *into))
        inner, factor = act(linear(rows, *gate)), linear(rows, *into)
        inner = inner.mul_(factor) if plain else inner * factor
        return inner if shift is None else inner + shift

    size = len(rows) * into[0].shape[1] * x.element_size()
    if not plain or size <= PIECE:
        return linear(some(rows), *out).unflatten(0, x.shape[:-1])
    found = torch.empty_like(rows)
    pieces = -(-size // PIECE)
    for part, place in zip(rows.chunk(pieces), found.chunk(pieces), strict=True):
        place.copy_(linear(some(part), *out))
    return found.unflatten(0, x.shape[:-1])
