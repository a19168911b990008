"""The fast engine: the usual blocks computed directly from their weights, without hooks.

1. Keys and values of unchanged positions come from the remembered run.
2. At the first edited layer attention is not run again: z is remembered.
3. In the last layer only the positions that are read have queries, and an MLP.
4. Weights stay where they are: the model's own tensors, seen as matrices.
5. Variants that are the same so far are one state; they part where their edits do.

Knows sequential and parallel blocks, layer and RMS norms before attention and MLP, learned and
rotary positions, grouped queries, local attention, norms of queries and keys, plain and gated MLPs
(others, e.g. experts, run as the model's own module), and edge gates.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from mechheads.models import edge_gates as gates
from mechheads.models.load import Model, embed, has_hooks, is_gated, norm_after_heads

from .interventions import Edit, Run

ACTIVATIONS = {
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "gelu": F.gelu,
    "silu": F.silu,
    "relu": F.relu,
}
NORMS = ("LN", "LNPre", "RMS", "RMSPre")


def unknown_part(model: Model) -> str | None:
    """What of the model the fast engine does not know; None if it knows all."""
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
        "somebody's hooks": not has_hooks(model),
    }
    return next((part for part, is_known in known.items() if not is_known), None)


@dataclass(frozen=True)
class Layer:
    """The weights of one block as matrices."""

    block: Any
    q: tuple[Tensor, Tensor]
    k: tuple[Tensor, Tensor]
    v: tuple[Tensor, Tensor]
    out: tuple[Tensor, Tensor]


@dataclass(frozen=True)
class States:
    """Residual streams between two layers, and which of them each variant is in."""

    state_of: Int[Tensor, " variant"]
    residual: Float[Tensor, "state row pos d_model"]


class Cache:
    """Keys and values of every layer, with room for so many positions."""

    def __init__(self, layers: int, room: int) -> None:
        """Empty."""
        self.length, self.room = 0, room
        self.keys: list[Tensor | None] = [None] * layers
        self.values: list[Tensor | None] = [None] * layers

    def with_new(
        self,
        layer: int,
        k: Float[Tensor, "row pos kv_head d_head"],
        v: Float[Tensor, "row pos kv_head d_head"],
    ) -> tuple[Float[Tensor, "row all kv_head d_head"], Float[Tensor, "row all kv_head d_head"]]:
        """All keys and values of a layer up to and with these new ones, which are kept."""
        end = self.length + k.shape[1]
        both = []
        for held, new in ((self.keys, k), (self.values, v)):
            room = held[layer]
            if room is None:
                room = held[layer] = new.new_empty(len(new), self.room, *new.shape[2:])
            room[:, self.length : end] = new
            both.append(room[:, :end])
        return both[0], both[1]

    def copies(self, n: int) -> "Cache":
        """The same for n variants of every row."""
        made = Cache(len(self.keys), self.room)
        made.length = self.length
        made.keys, made.values = (
            [None if x is None else x.repeat(n, 1, 1, 1) for x in held]
            for held in (self.keys, self.values)
        )
        return made


class Fast:
    """Runs the model's layers directly."""

    def __init__(self, model: Model) -> None:
        """Weights are copied only where they cannot be seen as matrices."""
        self.model = model
        self.cfg: Any = model.cfg
        self.bias: Tensor | None = getattr(model, "edge_gates", None) if is_gated(model) else None
        with torch.no_grad():
            self.layers = [_layer(block) for block in model.blocks]

    def remember(self, tokens: Int[Tensor, "row pos"], first: int, steps: int) -> Run:
        """Run the tokens once."""
        residual = embed(self.model, tokens)
        run = Run(first, steps, [], [], [], [], [])
        kept: Any = run
        for i in range(len(self.layers)):
            kept.entering.append(residual)
            x = self._norm(i, "ln1", residual)
            k, v = self._keys_values(i, x, 0)
            kept.keys.append(k)
            kept.values.append(v)
            kept.z.append(self._attend(i, self._queries(i, x, 0), k, v))
            if self.cfg.parallel_attn_mlp:
                kept.beside.append(self._mlp(i, residual))
                residual = residual + kept.beside[i]
            # The end of the last layer is not needed: what enters it and its z are enough.
            if i + 1 < len(self.layers):
                residual = residual + _linear(kept.z[i].flatten(2), *self.layers[i].out)
                if not self.cfg.parallel_attn_mlp and not self.cfg.attn_only:
                    residual = residual + self._mlp(i, residual)
        return run

    def resume(self, run: Run, edit: Edit) -> Float[Tensor, "variant row steps d_model"]:
        """The end of the run as it becomes with the edit."""
        i, n = edit.start, run.shape[1]
        where = slice(self._from(run, i), n)
        before = States(
            torch.zeros(edit.variants, dtype=torch.long), run.entering[i][None, :, where]
        )
        z = run.z[i][None, :, where]
        beside = run.beside[i][:, where] if run.beside else None
        after = self._finish(i, before, z, edit, where, beside)
        return self._go_on(run, i + 1, after, edit)

    def begin(
        self, run: Run, entering: Float[Tensor, "row pos d_model"], edit: Edit
    ) -> Float[Tensor, "variant row steps d_model"]:
        """The same, but with another residual stream entering the first layer, from `first` on."""
        states = States(_together(edit), entering[None, :, run.first :])
        return self._go_on(run, 0, states, edit)

    def _go_on(
        self, run: Run, start: int, states: "States", edit: Edit
    ) -> Float[Tensor, "variant row steps d_model"]:
        n = run.shape[1]
        for i in range(start, len(self.layers)):
            residual, begin = states.residual, self._from(run, i)
            flat = residual.flatten(0, 1)
            x = self._norm(i, "ln1", flat)
            k, v = self._keys_values(i, x, run.first)
            if run.first:
                k = torch.cat([_copies(run.keys[i][:, : run.first], len(residual)), k], dim=1)
                v = torch.cat([_copies(run.values[i][:, : run.first], len(residual)), v], dim=1)
            if begin != run.first:
                x = x[:, begin - n :]
                states = States(states.state_of, residual[:, :, begin - n :])
            z = self._attend(i, self._queries(i, x, begin), k, v)
            z = z.unflatten(0, residual.shape[:2])
            states = self._finish(i, states, z, edit, slice(begin, n), None)
        return _picked(states.residual, states.state_of)[:, :, -run.steps :]

    def _from(self, run: Run, layer: int) -> int:
        """The first position that a layer must compute."""
        return run.shape[1] - run.steps if layer + 1 == len(self.layers) else run.first

    def _finish(
        self,
        i: int,
        states: "States",
        z: Float[Tensor, "state row pos head d_head"],
        edit: Edit,
        where: slice,
        beside: Float[Tensor, "row pos d_model"] | None,
    ) -> "States":
        """The states after the layer, from those before it and their heads' z.

        `beside` is what a parallel MLP adds, where it is known already.
        """
        residual, state_of = states.residual, states.state_of
        if self.cfg.parallel_attn_mlp:
            residual = residual + (self._mlp(i, residual) if beside is None else beside)
        if edit.touches(i):
            parents, state_of, part = edit.branch(i, state_of)
            residual, z = _picked(residual, parents), part(i, _picked(z, parents), where)
        return States(state_of, self._after_heads(i, residual, z))

    def _after_heads(
        self,
        i: int,
        residual: Float[Tensor, "state row pos d_model"],
        z: Float[Tensor, "state row pos head d_head"],
    ) -> Float[Tensor, "state row pos d_model"]:
        """What the heads write, and an MLP that comes after them."""
        residual = residual + _linear(z.flatten(3), *self.layers[i].out)
        if self.cfg.parallel_attn_mlp or self.cfg.attn_only:
            return residual
        return residual + self._mlp(i, residual)

    def grow(
        self,
        entering: Float[Tensor, "variant row pos d_model"],
        cache: Cache,
        edit: Edit,
    ) -> Float[Tensor, "variant row pos d_model"]:
        """The residual stream after the last layer at new positions, which the cache then holds."""
        residual, new = entering, entering.shape[2]
        where = slice(cache.length, cache.length + new)
        for i in range(len(self.layers)):
            x = self._norm(i, "ln1", residual.flatten(0, 1))
            k, v = cache.with_new(i, *self._keys_values(i, x, where.start))
            z = self._attend(i, self._queries(i, x, where.start), k, v)
            z = z.unflatten(0, residual.shape[:2])
            if self.cfg.parallel_attn_mlp:
                residual = residual + self._mlp(i, residual)
            residual = self._after_heads(i, residual, edit(i, z, where) if edit.touches(i) else z)
        cache.length += new
        return residual

    def _norm(
        self, i: int, name: str, x: Float[Tensor, "*rows pos d_model"]
    ) -> Float[Tensor, "*rows pos d_model"]:
        norm = getattr(self.layers[i].block, name)
        weight, bias = getattr(norm, "w", None), getattr(norm, "b", None)
        if self.cfg.normalization_type.startswith("LN"):
            return F.layer_norm(x, x.shape[-1:], weight, bias, self.cfg.eps)
        return F.rms_norm(x, x.shape[-1:], weight, self.cfg.eps)

    def _queries(
        self, i: int, x: Float[Tensor, "row pos d_model"], offset: int
    ) -> Float[Tensor, "row pos head d_head"]:
        return self._place(i, "q_norm", _heads(x, self.layers[i].q, self.cfg.d_head), offset)

    def _keys_values(
        self, i: int, x: Float[Tensor, "row pos d_model"], offset: int
    ) -> tuple[Float[Tensor, "row pos kv_head d_head"], Float[Tensor, "row pos kv_head d_head"]]:
        layer = self.layers[i]
        k, v = (_heads(x, weights, self.cfg.d_head) for weights in (layer.k, layer.v))
        return self._place(i, "k_norm", k, offset), v

    def _place(
        self, i: int, norm: str, x: Float[Tensor, "row pos head d_head"], offset: int
    ) -> Float[Tensor, "row pos head d_head"]:
        """Queries or keys with their norm and their positions."""
        attention = self.layers[i].block.attn
        if self.cfg.use_qk_norm:
            x = attention._apply_qk_norm(x, getattr(attention, norm))
        if self.cfg.positional_embedding_type == "rotary":
            x = attention.apply_rotary(x, offset)
        return x

    def _attend(
        self,
        i: int,
        q: Float[Tensor, "row query head d_head"],
        k: Float[Tensor, "row key kv_head d_head"],
        v: Float[Tensor, "row key kv_head d_head"],
    ) -> Float[Tensor, "row query head d_head"]:
        """z of the last positions, as many as there are queries."""
        attention = self.layers[i].block.attn
        mask = attention._make_causal_mask(
            q.shape[1], k.shape[1], k.shape[1] - q.shape[1], q.device
        )
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        cap = self.cfg.attn_scores_soft_cap
        if self.bias is None and cap <= 0:
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
        if self.bias is not None:
            pattern = pattern * (gates.gate_logits(scores, self.bias[i].to(scores)) > 0)
        return (pattern @ v).transpose(1, 2)

    def _mlp(
        self, i: int, residual: Float[Tensor, "*rows pos d_model"]
    ) -> Float[Tensor, "*rows pos d_model"]:
        x = self._norm(i, "ln2", residual)
        mlp = self.layers[i].block.mlp
        names = {name for name, _ in mlp.named_parameters()}
        act = ACTIVATIONS.get(self.cfg.act_fn)
        if act is None or names - {"W_gate"} != {"W_in", "b_in", "W_out", "b_out"}:
            return mlp(x.flatten(0, -3)).view(x.shape)
        if "W_gate" in names:
            inner = act(x @ mlp.W_gate) * (x @ mlp.W_in) + mlp.b_in
        else:
            inner = act(_linear(x, mlp.W_in, mlp.b_in))
        return _linear(inner, mlp.W_out, mlp.b_out)


def _together(edit: Edit) -> Int[Tensor, " variant"]:
    """All variants in the first state."""
    return torch.zeros(edit.variants, dtype=torch.long)


def _layer(block: Any) -> Layer:
    attention = block.attn
    named = dict(attention.named_parameters())

    def joint(letter: str) -> tuple[Tensor, Tensor]:
        """[head, d_model, d_head] as one matrix; of grouped keys and values each is there once."""
        weight = named.get(f"_W_{letter}", named.get(f"W_{letter}"))
        bias = named.get(f"_b_{letter}", named.get(f"b_{letter}"))
        assert weight is not None
        assert bias is not None
        return weight.permute(1, 0, 2).flatten(1), bias.flatten()

    out = attention.W_O.flatten(0, 1), attention.b_O
    return Layer(block, joint("Q"), joint("K"), joint("V"), out)


def _linear(
    x: Float[Tensor, "*rows into"], weight: Float[Tensor, "into out"], bias: Float[Tensor, " out"]
) -> Float[Tensor, "*rows out"]:
    return torch.addmm(bias, x.flatten(0, -2), weight).unflatten(0, x.shape[:-1])


def _heads(
    x: Float[Tensor, "row pos d_model"], weights: tuple[Tensor, Tensor], d_head: int
) -> Float[Tensor, "row pos head d_head"]:
    return _linear(x, *weights).unflatten(2, (-1, d_head))


def _picked(
    x: Float[Tensor, "state *rest"], index: Int[Tensor, " picked"]
) -> Float[Tensor, "picked *rest"]:
    """x[index], without a copy where that is x itself or one state for all."""
    if len(x) == 1:
        return x.expand(len(index), *x.shape[1:])
    if len(x) == len(index) and bool((index == torch.arange(len(x))).all()):
        return x
    return x[index]


def _copies(x: Float[Tensor, "row *rest"], n: int) -> Float[Tensor, "copy *rest"]:
    """The rows n times."""
    return x.expand(n, *x.shape).flatten(0, 1)
