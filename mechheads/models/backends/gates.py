"""Closes the edges of a sparse model permanently, whichever kind of model it is.

Hooks compute the gates from the attention scores and multiply the pattern. Where a bridge only
watches its attention (`watches_only`), the softmax itself is multiplied.
"""

from typing import Any

from jaxtyping import Float
from torch import Tensor

from mechheads.models import edge_gates

from .lens import GATES


def add_gates(model: Any, bias: Float[Tensor, "layer head"]) -> None:
    """Gate every layer's attention, and keep the biases with the model."""
    model.__dict__[GATES] = bias
    for layer, block in enumerate(model.blocks):
        if watches_only(block.attn):
            _gate_softmax(block.attn.original_component, bias[layer])
        else:
            attention = f"blocks.{layer}.attn"
            scores, pattern = (
                model.hook_dict[f"{attention}.hook_{part}"] for part in ("attn_scores", "pattern")
            )
            _gate_hooks(scores, pattern, bias[layer])


def watches_only(attention: Any) -> bool:
    """Whether changing the pattern at its hook changes nothing: the module has used it already.

    So it is in the bridges of GPT-Neo, GPT-J and OPT.
    """
    return type(attention).__name__ == "AttentionBridge"


def _gate_hooks(scores: Any, pattern: Any, bias: Float[Tensor, " head"]) -> None:
    def keep(value: Tensor, hook: Any) -> Tensor:
        hook.ctx["open"] = edge_gates.gate_logits(value, bias) > 0
        return value

    def close(value: Tensor, hook: Any) -> Tensor:
        return value * scores.ctx.pop("open")

    scores.add_perma_hook(keep)
    pattern.add_perma_hook(close)


def _gate_softmax(attention: Any, bias: Float[Tensor, " head"]) -> None:
    active: list[edge_gates.GatedSoftmax] = []

    def begin(module: Any, args: Any) -> None:
        active.append(edge_gates.GatedSoftmax(bias))
        active[-1].__enter__()

    def end(module: Any, args: Any, output: Any) -> None:
        active.pop().__exit__(None, None, None)

    attention.register_forward_pre_hook(begin)
    attention.register_forward_hook(end, always_call=True)
