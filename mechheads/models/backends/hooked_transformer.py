"""A HookedTransformer as a `Lens`: TransformerLens 3's own model class."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F
from transformer_lens.cache.key_value_cache import TransformerLensKeyValueCache
from transformer_lens.hook_points import HookPoint
from transformer_lens.utilities.activation_functions import apply_softcap

from mechheads.prompts.encoder import Encoder

from .activations import gelu_tanh
from .blocks import Block, neurons
from .lens import GATES, NORM_AFTER_HEADS, Residual, Shape, Traits, Z, frozen_scale, layer_hooks
from .mlp_hooks import changed_activation
from .products import Linear, without_zeros

ACTIVATIONS = {
    "gelu_new": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "gelu": F.gelu,
    "silu": F.silu,
    "relu": F.relu,
}
NORMS = ("LN", "LNPre", "RMS", "RMSPre")


@dataclass(frozen=True)
class HookedLens:
    """Reads the config and uses the hooks of a HookedTransformer."""

    model: Any

    @property
    def backend(self) -> str:
        """The name of its kind."""
        return "hooked"

    @property
    def name(self) -> str:
        """The short name, for titles and sentences."""
        return self.model.cfg.model_name

    @property
    def shape(self) -> Shape:
        """The sizes."""
        cfg = self.model.cfg
        return Shape(
            cfg.n_layers,
            cfg.n_heads,
            cfg.n_key_value_heads or cfg.n_heads,
            cfg.d_head,
            cfg.d_model,
            cfg.d_vocab,
            cfg.n_ctx,
        )

    @property
    def traits(self) -> Traits:
        """What kind of model it is."""
        cfg = self.model.cfg
        return Traits(
            cfg.d_mlp or 0,
            cfg.gated_mlp,
            cfg.parallel_attn_mlp,
            cfg.use_normalization_before_and_after or cfg.original_architecture in NORM_AFTER_HEADS,
            (cfg.output_logits_soft_cap or 0) > 0,
            cfg.original_architecture or "",
        )

    @property
    def encoder(self) -> Encoder:
        """How text becomes tokens."""
        cfg = self.model.cfg
        return Encoder(
            cfg.model_name,
            self.model.tokenizer,
            cfg.default_prepend_bos,
            cfg.n_ctx,
            cfg.d_vocab_out,
        )

    @property
    def gates(self) -> Float[Tensor, "layer head"] | None:
        """The biases of a sparse model's edge gates."""
        return self.model.__dict__.get(GATES)

    @property
    def device(self) -> torch.device:
        """The device that takes the input tokens."""
        return self.model.W_E.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype the model computes in."""
        return self.model.W_E.dtype

    def embed(self, tokens: Int[Tensor, "row pos"]) -> Residual:
        """The residual stream that enters the first layer."""
        return self.model(tokens.to(self.device), stop_at_layer=0)

    def unembed(
        self, residual: Float[Tensor, "*rows d_model"], tokens: Int[Tensor, " some"] | None
    ) -> Float[Tensor, "*rows some"]:
        """Logits of the given tokens, or of all, from the residual stream after the last layer."""
        model = self.model
        flat = residual.flatten(0, -2)[None]
        if model.cfg.normalization_type is not None:
            scale = getattr(model.ln_final, "hook_scale", None)
            # Without hooks in the same fused call as on a bridge, so that both round alike.
            unhooked = scale is not None and not scale.fwd_hooks  # and not a module of another kind
            plain = model.cfg.normalization_type in NORMS and unhooked
            flat = _norm(model.cfg, model.ln_final)(flat) if plain else model.ln_final(flat)
        if tokens is None:
            logits = model.unembed(flat)
        else:
            ids = tokens.to(model.W_U.device)
            logits = flat @ model.W_U[:, ids] + model.b_U[ids]
        logits = apply_softcap(logits, model.cfg.output_logits_soft_cap)
        return logits[0].unflatten(0, residual.shape[:-1])

    def logits_at_end(
        self, tokens: Int[Tensor, "row pos"], steps: int, pair_of: Int[Tensor, " row"]
    ) -> Float[Tensor, "row steps vocab"]:
        """Logits at the last `steps` positions; the other positions are not unembedded.

        Rows of one pair share all but their last steps - 1 tokens, and the shared part runs once.
        """
        model = self.model
        tokens, pair_of = tokens.to(self.device), pair_of.to(self.device)
        n_pairs, rows = int(pair_of.max()) + 1, len(pair_of)
        if steps == 1 or n_pairs == rows:
            residual = model(tokens, stop_at_layer=model.cfg.n_layers)[:, -steps:]
            return self.unembed(residual, None)
        first = torch.searchsorted(pair_of, torch.arange(n_pairs, device=pair_of.device))
        cache = TransformerLensKeyValueCache.init_cache(model.cfg, model.cfg.device, n_pairs)
        shared = self._continue(tokens[first, : 1 - steps], cache)[:, -1:]
        for entry in cache.entries:
            entry.past_keys = entry.past_keys[pair_of.to(entry.past_keys.device)]
            entry.past_values = entry.past_values[pair_of.to(entry.past_values.device)]
        cache.previous_attention_mask = cache.previous_attention_mask[pair_of]
        own = self._continue(tokens[:, 1 - steps :], cache)
        return self.unembed(torch.cat([shared[pair_of], own], dim=1), None)

    def _continue(
        self, tokens: Int[Tensor, "row pos"], cache: TransformerLensKeyValueCache
    ) -> Residual:
        # An explicit mask: TransformerLens would mistake BOS for padding where both are EOS.
        everything = torch.ones_like(tokens)
        return self.model(
            tokens,
            stop_at_layer=self.model.cfg.n_layers,
            past_kv_cache=cache,
            attention_mask=everything,
        )

    def with_patterns(
        self,
        tokens: Int[Tensor, "row pos"],
        see: Callable[[int, Float[Tensor, "row head query key"]], None],
    ) -> None:
        """Run the tokens and pass every layer's attention pattern to `see(layer, pattern)`."""

        def hook(pattern: Tensor, hook: HookPoint) -> None:
            see(hook.layer(), pattern)

        names = [f"blocks.{layer}.attn.hook_pattern" for layer in range(self.model.cfg.n_layers)]
        self.model.run_with_hooks(
            tokens.to(self.device),
            stop_at_layer=self.model.cfg.n_layers,
            fwd_hooks=[(name, hook) for name in names],
        )

    def attention_inside(self, tokens: Int[Tensor, "row pos"]) -> tuple[list[Residual], list[Z]]:
        """Run the tokens once and keep what enters every layer, and every head's z."""
        entering: list[Tensor] = []
        z: list[Tensor] = []
        hooks = []
        for layer in range(self.model.cfg.n_layers):
            hooks.append((f"blocks.{layer}.hook_resid_pre", _keeper(entering)))
            hooks.append((f"blocks.{layer}.attn.hook_z", _keeper(z)))
        self.model.run_with_hooks(
            tokens.to(self.device), stop_at_layer=self.model.cfg.n_layers, fwd_hooks=hooks
        )
        return entering, z

    def run_blocks(
        self,
        entering: Residual,
        start: int,
        layers: Sequence[int],
        change: Callable[[int, Z], Tensor],
        stop: int | None = None,
    ) -> Residual:
        """The residual stream after the last layer (or entering `stop`), with z changed."""

        def hook(z: Tensor, hook: HookPoint) -> Tensor:
            return change(hook.layer(), z)

        return self.model.run_with_hooks(
            entering,
            start_at_layer=start,
            stop_at_layer=self.model.cfg.n_layers if stop is None else stop,
            fwd_hooks=[(f"blocks.{layer}.attn.hook_z", hook) for layer in layers],
        )

    def layer_parts(
        self, layer: int, entering: Residual, changes: Mapping[str, Callable[[Tensor], Tensor]]
    ) -> dict[str, Tensor]:
        """The parts of a layer that it has, with some changed, and "out", what leaves it."""
        kept: dict[str, Tensor] = {}
        hooks = layer_hooks(self.model.hook_dict, layer, changes, kept)
        kept["out"] = self.model.run_with_hooks(
            entering, start_at_layer=layer, stop_at_layer=layer + 1, fwd_hooks=hooks
        )
        return kept

    @contextlib.contextmanager
    def changed_mlp(
        self, layer: int, change: Callable[[Float[Tensor, "row pos d_mlp"]], Tensor]
    ) -> Iterator[None]:
        """While active, act(pre) of a layer's MLP is changed; if gated, before the product."""
        mlp: Any = self.model.blocks[layer].mlp
        points = {
            part: self.model.hook_dict.get(f"blocks.{layer}.mlp.hook_{part}")
            for part in ("pre", "pre_linear", "post")
        }
        with changed_activation(self.name, layer, points, mlp.act_fn, change):
            yield

    def output_weights(self, layer: int) -> Float[Tensor, "head d_head d_model"]:
        """W_O of one layer. Not model.W_O: that copies the weights of all layers."""
        return self.model.blocks[layer].attn.W_O

    def final_norm(self) -> Callable[[Tensor], Tensor] | None:
        """The norm before the unembedding; None if there is none."""
        return None if self.model.cfg.normalization_type is None else self.model.ln_final

    def frozen_final_norm(self) -> contextlib.AbstractContextManager[None]:
        """While active, no gradient flows through the scale of the norm before the unembedding."""
        return frozen_scale(self.model)

    def unembedding(self) -> Float[Tensor, "d_model vocab"]:
        """W_U."""
        return self.model.W_U

    def has_hooks(self) -> bool:
        """Whether the model has foreign hooks; those of edge gates are ours."""
        ours = 2 * self.model.cfg.n_layers if self.gates is not None else 0
        return ours != sum(len(point.fwd_hooks) for point in self.model.hook_dict.values())

    def unknown_part(self) -> str | None:
        """A part of the model that `blocks` does not support; None if all are supported."""
        cfg = self.model.cfg
        known = {
            "its positions": cfg.positional_embedding_type in ("standard", "rotary"),
            "its norms": cfg.normalization_type in NORMS,
            "norms after attention": not self.traits.norm_after_heads,
            "norms of all queries": cfg.original_architecture != "OlmoeForCausalLM",
            "clipped queries": cfg.clip_qkv is None,
            "attention sinks": not cfg.use_attention_sinks,
            "scaled rotary positions": not (cfg.use_dynamic_ntk_rope or cfg.use_logn_attn),
            "split inputs": not (cfg.use_attn_in or cfg.use_split_qkv_input or cfg.use_hook_mlp_in),
            "results per head": not cfg.use_attn_result,
            "4-bit weights": not cfg.load_in_4bit,
            "attention in both directions": cfg.attention_dir == "causal",
            "layers on several devices": cfg.n_devices == 1,
            "foreign hooks": not self.has_hooks(),
        }
        return next((part for part, is_known in known.items() if not is_known), None)

    @torch.no_grad()
    def blocks(self) -> list[Block]:
        """All layers; weights are copied only where they cannot be viewed as matrices."""
        return [
            _block(self.model.cfg, block, None if self.gates is None else self.gates[i])
            for i, block in enumerate(self.model.blocks)
        ]


def _keeper(kept: list[Tensor]) -> Callable[..., None]:
    def hook(value: Tensor, hook: HookPoint) -> None:
        kept.append(value)

    return hook


def _block(cfg: Any, block: Any, gate_bias: Tensor | None) -> Block:
    attention = block.attn
    named = dict(attention.named_parameters())

    def joint(letter: str) -> Linear:
        """[head, d_model, d_head] as one matrix, with grouped keys and values only once."""
        weight = named.get(f"_W_{letter}", named.get(f"W_{letter}"))
        bias = named.get(f"_b_{letter}", named.get(f"b_{letter}"))
        assert weight is not None
        assert bias is not None
        return weight.permute(1, 0, 2).flatten(1), bias.flatten()

    def place(norm: str, x: Tensor, offset: int) -> Tensor:
        if cfg.use_qk_norm:
            x = attention._apply_qk_norm(x, getattr(attention, norm))
        return attention.apply_rotary(x, offset) if rotary else x

    def mask(queries: int, keys: int) -> Tensor:
        return attention._make_causal_mask(queries, keys, keys - queries, attention.W_O.device)

    rotary = cfg.positional_embedding_type == "rotary"
    return Block(
        cfg.d_head,
        joint("Q"),
        joint("K"),
        joint("V"),
        (attention.W_O.flatten(0, 1), attention.b_O),
        _norm(cfg, block.ln1),
        torch.zeros_like if cfg.attn_only else _mlp(cfg, block),
        partial(place, "q_norm"),
        partial(place, "k_norm"),
        mask,
        float(attention.attn_scale),
        max(0.0, float(cfg.attn_scores_soft_cap)),
        cfg.parallel_attn_mlp,
        not cfg.attn_only,
        gate_bias,
    )


def _norm(cfg: Any, norm: Any) -> Callable[[Tensor], Tensor]:
    def apply(x: Tensor) -> Tensor:
        weight, bias = getattr(norm, "w", None), getattr(norm, "b", None)
        if cfg.normalization_type.startswith("LN"):
            return F.layer_norm(x, x.shape[-1:], weight, bias, cfg.eps)
        return F.rms_norm(x, x.shape[-1:], weight, cfg.eps)

    return apply


def _mlp(cfg: Any, block: Any) -> Callable[[Tensor], Tensor]:
    norm, mlp = _norm(cfg, block.ln2), block.mlp
    names = {name for name, _ in mlp.named_parameters()}
    act = ACTIVATIONS.get(cfg.act_fn)
    if act is None or names - {"W_gate"} != {"W_in", "b_in", "W_out", "b_out"}:
        return lambda x: mlp(norm(x).flatten(0, -3)).view(x.shape)
    into, out = without_zeros((mlp.W_in, mlp.b_in)), without_zeros((mlp.W_out, mlp.b_out))
    if "W_gate" not in names:
        return lambda x: neurons(norm(x), act, into, out)
    # TransformerLens adds b_in to the product.
    gate, factor, shift = (mlp.W_gate, None), (mlp.W_in, None), into[1]
    return lambda x: neurons(norm(x), act, factor, out, gate, shift)
