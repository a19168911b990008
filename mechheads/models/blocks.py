"""A model's blocks computed directly from their weights, without hooks.

Supports sequential and parallel blocks, layer and RMS norms before attention and MLP, learned and
rotary positions, grouped-query attention, local attention, norms of queries and keys, plain and
gated MLPs (others, e.g. experts, run as the model's own module), and edge gates. Weights are not
copied: they are the model's own tensors, viewed as matrices.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from . import edge_gates
from .hooks import has_hooks
from .model import Model, is_gated, norm_after_heads

ACTIVATIONS = {
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "gelu": F.gelu,
    "silu": F.silu,
    "relu": F.relu,
}
NORMS = ("LN", "LNPre", "RMS", "RMSPre")


def unknown_part(model: Model) -> str | None:
    """A part of the model that is not supported here; None if all are supported."""
    cfg = model.cfg
    known = {
        "its positions": cfg.positional_embedding_type in ("standard", "rotary"),
        "its norms": cfg.normalization_type in NORMS,
        "norms after attention": not norm_after_heads(model),
        "norms of all queries": cfg.original_architecture != "OlmoeForCausalLM",
        "clipped queries": cfg.clip_qkv is None,
        "attention sinks": not cfg.use_attention_sinks,
        "scaled rotary positions": not (cfg.use_dynamic_ntk_rope or cfg.use_logn_attn),
        "split inputs": not (cfg.use_attn_in or cfg.use_split_qkv_input or cfg.use_hook_mlp_in),
        "results per head": not cfg.use_attn_result,
        "4-bit weights": not cfg.load_in_4bit,
        "attention in both directions": cfg.attention_dir == "causal",
        "layers on several devices": cfg.n_devices == 1,
        "foreign hooks": not has_hooks(model),
    }
    return next((part for part, is_known in known.items() if not is_known), None)


Linear = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Block:
    """One layer: its norms, the weights of its heads as matrices, and its MLP.

    In `parallel` blocks, attention and MLP read the same residual stream; some models have no MLP.
    """

    module: Any
    cfg: Any
    q: Linear
    k: Linear
    v: Linear
    out: Linear
    gate_bias: Float[Tensor, " head"] | None = None

    @property
    def parallel(self) -> bool:
        """Whether the MLP reads the same residual stream as the heads."""
        return self.cfg.parallel_attn_mlp

    @property
    def has_mlp(self) -> bool:
        """Whether there is an MLP."""
        return not self.cfg.attn_only

    def attention_input(
        self, residual: Float[Tensor, "*rows pos d_model"]
    ) -> Float[Tensor, "*rows pos d_model"]:
        """What the heads read: the residual stream after the first norm."""
        return self._norm("ln1", residual)

    def queries(
        self, x: Float[Tensor, "row pos d_model"], offset: int
    ) -> Float[Tensor, "row pos head d_head"]:
        """Queries at positions from `offset` on."""
        return self._place("q_norm", _heads(x, self.q, self.cfg.d_head), offset)

    def keys_values(
        self, x: Float[Tensor, "row pos d_model"], offset: int
    ) -> tuple[Float[Tensor, "row pos kv_head d_head"], Float[Tensor, "row pos kv_head d_head"]]:
        """Keys and values at positions from `offset` on."""
        k, v = (_heads(x, weights, self.cfg.d_head) for weights in (self.k, self.v))
        return self._place("k_norm", k, offset), v

    def write(
        self, z: Float[Tensor, "*rows pos head d_head"]
    ) -> Float[Tensor, "*rows pos d_model"]:
        """What all heads together add to the residual stream."""
        return _linear(z.flatten(-2), *self.out)

    def attend(
        self,
        q: Float[Tensor, "row query head d_head"],
        k: Float[Tensor, "row key kv_head d_head"],
        v: Float[Tensor, "row key kv_head d_head"],
    ) -> Float[Tensor, "row query head d_head"]:
        """z at the last positions, one per query."""
        attention = self.module.attn
        mask = attention._make_causal_mask(
            q.shape[1], k.shape[1], k.shape[1] - q.shape[1], q.device
        )
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        cap = self.cfg.attn_scores_soft_cap
        if self.gate_bias is None and cap <= 0:
            z = F.scaled_dot_product_attention(
                q,
                k,
                v,
                attn_mask=mask,
                scale=1 / attention.attn_scale,
                enable_gqa=q.shape[1] != k.shape[1],
            )
            return z.transpose(1, 2)
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
        scores = q @ k.mT / attention.attn_scale
        if cap > 0:
            scores = cap * torch.tanh(scores / cap)
        scores = scores.masked_fill(~mask, float(attention.IGNORE))
        pattern = scores.softmax(-1)
        if self.gate_bias is not None:
            pattern = pattern * (edge_gates.gate_logits(scores, self.gate_bias.to(scores)) > 0)
        return (pattern @ v).transpose(1, 2)

    def mlp(
        self, residual: Float[Tensor, "*rows pos d_model"]
    ) -> Float[Tensor, "*rows pos d_model"]:
        """What the MLP adds to the residual stream."""
        x = self._norm("ln2", residual)
        mlp = self.module.mlp
        names = {name for name, _ in mlp.named_parameters()}
        act = ACTIVATIONS.get(self.cfg.act_fn)
        if act is None or names - {"W_gate"} != {"W_in", "b_in", "W_out", "b_out"}:
            return mlp(x.flatten(0, -3)).view(x.shape)
        if "W_gate" in names:
            inner = act(x @ mlp.W_gate) * (x @ mlp.W_in) + mlp.b_in
        else:
            inner = act(_linear(x, mlp.W_in, mlp.b_in))
        return _linear(inner, mlp.W_out, mlp.b_out)

    def _norm(
        self, name: str, x: Float[Tensor, "*rows pos d_model"]
    ) -> Float[Tensor, "*rows pos d_model"]:
        norm = getattr(self.module, name)
        weight, bias = getattr(norm, "w", None), getattr(norm, "b", None)
        if self.cfg.normalization_type.startswith("LN"):
            return F.layer_norm(x, x.shape[-1:], weight, bias, self.cfg.eps)
        return F.rms_norm(x, x.shape[-1:], weight, self.cfg.eps)

    def _place(
        self, norm: str, x: Float[Tensor, "row pos head d_head"], offset: int
    ) -> Float[Tensor, "row pos head d_head"]:
        """Queries or keys with their norm and rotary positions applied."""
        attention = self.module.attn
        if self.cfg.use_qk_norm:
            x = attention._apply_qk_norm(x, getattr(attention, norm))
        if self.cfg.positional_embedding_type == "rotary":
            x = attention.apply_rotary(x, offset)
        return x


@torch.no_grad()
def blocks_of(model: Model) -> list[Block]:
    """All layers; weights are copied only where they cannot be viewed as matrices."""
    gates: Any = getattr(model, "edge_gates", None) if is_gated(model) else None
    return [
        _block(model, block, None if gates is None else gates[i])
        for i, block in enumerate(model.blocks)
    ]


def _block(model: Model, block: Any, gate_bias: Tensor | None) -> Block:
    attention = block.attn
    named = dict(attention.named_parameters())

    def joint(letter: str) -> Linear:
        """[head, d_model, d_head] as one matrix, with grouped keys and values only once."""
        weight = named.get(f"_W_{letter}", named.get(f"W_{letter}"))
        bias = named.get(f"_b_{letter}", named.get(f"b_{letter}"))
        assert weight is not None
        assert bias is not None
        return weight.permute(1, 0, 2).flatten(1), bias.flatten()

    out = attention.W_O.flatten(0, 1), attention.b_O
    return Block(block, model.cfg, joint("Q"), joint("K"), joint("V"), out, gate_bias)


def _linear(
    x: Float[Tensor, "*rows into"], weight: Float[Tensor, "into out"], bias: Float[Tensor, " out"]
) -> Float[Tensor, "*rows out"]:
    return torch.addmm(bias, x.flatten(0, -2), weight).unflatten(0, x.shape[:-1])


def _heads(
    x: Float[Tensor, "row pos d_model"], weights: Linear, d_head: int
) -> Float[Tensor, "row pos head d_head"]:
    return _linear(x, *weights).unflatten(2, (-1, d_head))
