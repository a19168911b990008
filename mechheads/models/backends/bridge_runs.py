"""Runs of a TransformerBridge: up to a layer, up to the end, and on from any layer.

1. A bridge cannot start at a layer, so a run resumes by calling its blocks again: what each block
   is called with besides the residual stream (mask, positions) is recorded once per length.
2. A run ends after the last block: only the positions that are read are unembedded.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from .lens import Residual


class _Stop(Exception):
    """Ends a run: what is needed has been seen."""


@dataclass(frozen=True)
class BlockCall:
    """What a block is called with, besides the residual stream."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def mask(self) -> Tensor | None:
        """The attention mask [row, head, query, key], if there is one."""
        given = [*self.args, self.kwargs.get("attention_mask")]
        masks = [x for x in given if isinstance(x, Tensor) and x.dim() == 4]
        return masks[-1] if masks else None


@dataclass(frozen=True)
class BridgeRuns:
    """Runs a bridge; `calls` holds what each block is called with, by the number of positions."""

    model: Any
    calls: dict[Any, list[BlockCall]] = field(default_factory=dict)

    @property
    def device(self) -> torch.device:
        """The device that takes the input tokens."""
        place = self.model.embed.weight.device
        if place.type == "meta":  # the weights are on disk: accelerate loads them for each run
            place = torch.device(inner_of(self.model.embed)._hf_hook.execution_device)
        return place

    @property
    def dtype(self) -> torch.dtype:
        """The dtype the model computes in."""
        return self.model.embed.weight.dtype

    def start(self, tokens: Int[Tensor, "row pos"]) -> Residual:
        """The residual stream that enters the first layer."""
        kept: list[Tensor] = []

        def see(layer: int, entering: Tensor) -> None:
            kept.append(entering)
            raise _Stop

        with self.watching(see):
            self._forward(tokens)
        return kept[0]

    def end(self, tokens: Int[Tensor, "row pos"]) -> Residual:
        """The residual stream after the last layer."""
        kept: list[Tensor] = []

        def see(module: Any, args: Any, output: Any) -> None:
            kept.append(_first(output))
            raise _Stop

        with _removed_later([self.model.blocks[-1].register_forward_hook(see)]):
            self._forward(tokens)
        return kept[0]

    def again(self, layer: int, entering: Residual) -> Residual:
        """What leaves a layer."""
        call = self.called(entering.shape[1])[layer]
        kwargs = call.kwargs
        if (alibi := kwargs.get("alibi")) is not None:  # has a row per head and prompt
            kwargs = kwargs | {"alibi": alibi.repeat(len(entering), 1, 1)}
        return _first(self.model.blocks[layer](entering, *call.args, **kwargs))

    def called(self, positions: int) -> list[BlockCall]:
        """What every block is called with in a run of one row. Call it before hooks are set."""
        key = positions, self.device, self.dtype
        if key in self.calls:
            return self.calls[key]
        found: list[BlockCall] = []

        def see(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            rest = {name: _kept(value) for name, value in kwargs.items() if name != "hidden_states"}
            rest |= {"use_cache": False} if "use_cache" in kwargs else {}
            found.append(BlockCall(tuple(map(_kept, args[1:])), rest))

        watches = [
            block.register_forward_pre_hook(see, with_kwargs=True) for block in self.model.blocks
        ]
        # Not in inference mode: gradients may flow through later calls.
        with _removed_later(watches), torch.inference_mode(False), torch.no_grad():
            self.end(torch.zeros(1, positions, dtype=torch.long))
        self.calls[key] = found
        return found

    @contextlib.contextmanager
    def watching(self, see: Callable[[int, Residual], None]) -> Iterator[None]:
        """Pass what enters each layer to `see(layer, residual)`."""
        watches = []
        for layer, block in enumerate(self.model.blocks):

            def hook(
                module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], layer: int = layer
            ) -> None:
                see(layer, args[0] if args else kwargs["hidden_states"])

            watches.append(block.register_forward_pre_hook(hook, with_kwargs=True))
        with _removed_later(watches):
            yield

    @contextlib.contextmanager
    def changing(
        self, part: str, layers: Sequence[int], change: Callable[[int, Tensor], Tensor]
    ) -> Iterator[None]:
        """Apply change(layer, value) to a part of the attention of these layers."""
        hooks = []
        for layer in layers:

            def hook(value: Tensor, hook: Any, layer: int = layer) -> Tensor:
                return change(layer, value)

            hooks.append((f"blocks.{layer}.attn.hook_{part}", hook))
        with self.model.hooks(fwd_hooks=hooks):
            yield

    def _forward(self, tokens: Int[Tensor, "row pos"]) -> None:
        with contextlib.suppress(_Stop):
            self.model(tokens.to(self.device), return_type=None, use_cache=False)


@contextlib.contextmanager
def _removed_later(handles: Sequence[Any]) -> Iterator[None]:
    """Remove hooks of torch's at the end."""
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def inner_of(component: Any) -> Any:
    """The transformers module inside a component of a bridge."""
    inner = getattr(component, "original_component", None)
    return component if inner is None else inner


def _first(output: Any) -> Tensor:
    return output[0] if isinstance(output, tuple) else output


def _kept(value: Any) -> Any:
    """An argument of a block as it may be used again: without a cache, and without gradients."""
    if isinstance(value, Tensor):
        return value.detach()
    if isinstance(value, tuple):
        return tuple(map(_kept, value))
    return value if isinstance(value, bool | int | float | str | None) else None
