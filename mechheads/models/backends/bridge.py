"""A TransformerBridge as a `Lens`: TransformerLens 4's model class, around a transformers model.

`bridge_runs` runs it and resumes its runs; `bridge_blocks` reads its layers as plain tensors.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens.utilities.activation_functions import apply_softcap

from mechheads.errors import MechheadsError
from mechheads.prompts.encoder import Encoder

from .blocks import Block
from .bridge_blocks import activation, plain_block, plain_norm, readable, unknown_part, weights
from .bridge_runs import BridgeRuns, inner_of
from .gates import watches_only
from .lens import (
    GATES,
    NORM_AFTER_HEADS,
    Residual,
    Shape,
    Traits,
    Z,
    changed_scales,
    frozen_scale,
    layer_hooks,
)
from .mlp_hooks import changed_activation


@dataclass(frozen=True)
class BridgeLens:
    """Reads the config and uses the hooks of a TransformerBridge.

    `short` is the name in titles and sentences; `lenses` counts the hooks that TransformerLens
    itself needs.
    """

    model: Any
    short: str
    lenses: int = 0

    @cached_property
    def runs(self) -> BridgeRuns:
        """What runs the model."""
        return BridgeRuns(self.model)

    @property
    def backend(self) -> str:
        """The name of its kind."""
        return "bridge"

    @property
    def name(self) -> str:
        """The short name, for titles and sentences."""
        return self.short

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
            bool(cfg.gated_mlp),
            bool(cfg.parallel_attn_mlp),
            cfg.architecture in NORM_AFTER_HEADS,
            (cfg.output_logits_soft_cap or 0) > 0,
            cfg.architecture or "",
        )

    @property
    def encoder(self) -> Encoder:
        """How text becomes tokens."""
        cfg, shape = self.model.cfg, self.shape
        begin = bool(cfg.default_prepend_bos)
        return Encoder(self.name, self.model.tokenizer, begin, shape.context, shape.vocabulary)

    @property
    def gates(self) -> Float[Tensor, "layer head"] | None:
        """The biases of a sparse model's edge gates."""
        return self.model.__dict__.get(GATES)

    @property
    def device(self) -> torch.device:
        """The device that takes the input tokens."""
        return self.runs.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype the model computes in."""
        return self.runs.dtype

    def embed(self, tokens: Int[Tensor, "row pos"]) -> Residual:
        """The residual stream that enters the first layer."""
        return self.runs.start(tokens)

    def unembed(
        self, residual: Float[Tensor, "*rows d_model"], tokens: Int[Tensor, " some"] | None
    ) -> Float[Tensor, "*rows some"]:
        """Logits of the given tokens, or of all, from the residual stream after the last layer."""
        model = self.model
        flat = residual.flatten(0, -2)[None]
        norm = getattr(model, "ln_final", None)
        if norm is not None:
            hooked = getattr(norm, "hook_scale", None) is not None and norm.hook_scale.fwd_hooks
            flat = norm(flat) if hooked else plain_norm(norm)(flat)
        weight = None if tokens is None else readable(model.unembed)
        if weight is not None and tokens is not None:
            ids = tokens.to(weight[0].device)
            logits = flat.to(weight[0].device) @ weight[0][:, ids] + weight[1][ids]
        else:
            logits = model.unembed(flat)
            logits = logits if tokens is None else logits[..., tokens.to(logits.device)]
        logits = apply_softcap(logits, model.cfg.output_logits_soft_cap or 0.0)
        return logits[0].unflatten(0, residual.shape[:-1])

    def logits_at_end(
        self, tokens: Int[Tensor, "row pos"], steps: int, pair_of: Int[Tensor, " row"]
    ) -> Float[Tensor, "row steps vocab"]:
        """Logits at the last `steps` positions; the other positions are not unembedded."""
        return self.unembed(self.runs.end(tokens)[:, -steps:], None)

    def with_patterns(
        self,
        tokens: Int[Tensor, "row pos"],
        see: Callable[[int, Float[Tensor, "row head query key"]], None],
    ) -> None:
        """Run the tokens and pass every layer's attention pattern to `see(layer, pattern)`."""

        def looking(layer: int, pattern: Tensor) -> Tensor:
            see(layer, pattern)
            return pattern

        with self.runs.changing("pattern", range(self.shape.layers), looking):
            self.runs.end(tokens)

    def attention_inside(self, tokens: Int[Tensor, "row pos"]) -> tuple[list[Residual], list[Z]]:
        """Run the tokens once and keep what enters every layer, and every head's z."""
        entering: list[Tensor] = []
        z: list[Tensor] = []

        def keep(layer: int, value: Tensor) -> Tensor:
            z.append(value)
            return value

        def see(layer: int, residual: Tensor) -> None:
            entering.append(residual)

        with self.runs.watching(see), self.runs.changing("z", range(self.shape.layers), keep):
            self.runs.end(tokens)
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
        end = self.shape.layers if stop is None else stop
        self.runs.called(entering.shape[1])  # recorded without our hooks
        with self.runs.changing("z", layers, change):
            for layer in range(start, end):
                entering = self.runs.again(layer, entering)
        return entering

    def layer_parts(
        self, layer: int, entering: Residual, changes: Mapping[str, Callable[[Tensor], Tensor]]
    ) -> dict[str, Tensor]:
        """The parts of a layer that it has, with some changed, and "out", what leaves it."""
        kept: dict[str, Tensor] = {}
        self.runs.called(entering.shape[1])  # recorded without our hooks
        deaf = {"pattern"} if watches_only(self.model.blocks[layer].attn) else set()
        heard = {part: change for part, change in changes.items() if part not in deaf}
        hooks = layer_hooks(self.model.hook_dict, layer, heard, kept)
        with changed_scales(), self.model.hooks(fwd_hooks=hooks):
            kept["out"] = self.runs.again(layer, entering)
        if len(heard) == len(changes):
            return kept
        pattern = changes["pattern"](kept["pattern"])
        v = kept["v"].repeat_interleave(self.shape.heads // self.shape.kv_heads, dim=2)
        z = torch.einsum("rhqk,rkhd->rqhd", pattern, v)
        return {
            **self.layer_parts(layer, entering, {**heard, "z": lambda _: z}),
            "pattern": pattern,
        }

    @contextlib.contextmanager
    def changed_mlp(
        self, layer: int, change: Callable[[Float[Tensor, "row pos d_mlp"]], Tensor]
    ) -> Iterator[None]:
        """While active, act(pre) of a layer's MLP is changed; if gated, before the product."""
        points = {
            part: self.model.hook_dict.get(f"blocks.{layer}.mlp.hook_{part}")
            for part in ("pre", "pre_linear", "post")
        }
        act = activation(self.model.blocks[layer].mlp)
        if points["pre_linear"] is not None and act is None:
            raise MechheadsError(f"The MLPs of {self.name} cannot be changed on this backend.")
        with changed_activation(self.name, layer, points, act or (lambda x: x), change):
            yield

    def output_weights(self, layer: int) -> Float[Tensor, "head d_head d_model"]:
        """W_O of one layer."""
        weight = weights(self.model.blocks[layer].attn.o, self.name)
        return weight[0].unflatten(0, (self.shape.heads, -1))

    def final_norm(self) -> Callable[[Tensor], Tensor] | None:
        """The norm before the unembedding, without hooks; None if there is none."""
        norm = getattr(self.model, "ln_final", None)
        return None if norm is None else inner_of(norm)

    def frozen_final_norm(self) -> contextlib.AbstractContextManager[None]:
        """While active, no gradient flows through the scale of the norm before the unembedding."""
        return frozen_scale(self.model)

    def unembedding(self) -> Float[Tensor, "d_model vocab"]:
        """W_U."""
        return weights(self.model.unembed, self.name)[0]

    def has_hooks(self) -> bool:
        """Whether the model has foreign hooks; those of edge gates are ours."""
        hooked = [block for block in self.model.blocks if not watches_only(block.attn)]
        ours = 2 * len(hooked) if self.gates is not None else 0
        return count_hooks(self.model) != ours + self.lenses

    def unknown_part(self) -> str | None:
        """A part of the model that `blocks` does not support; None if all are supported."""
        return unknown_part(self.model, self.has_hooks())

    @torch.no_grad()
    def blocks(self) -> list[Block]:
        """All layers as plain tensors and functions."""
        gates = [None] * self.shape.layers if self.gates is None else self.gates
        return [
            plain_block(self.model, layer, self.shape, self.runs, gates[layer])
            for layer in range(self.shape.layers)
        ]


def count_hooks(bridge: Any) -> int:
    """The number of forward hooks; a hook point may have several names."""
    points = {id(point): point for point in bridge.hook_dict.values()}
    return sum(len(point.fwd_hooks) for point in points.values())
