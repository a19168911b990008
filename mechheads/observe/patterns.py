"""Attention patterns of all heads on one prompt."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.errors import MechheadsError
from mechheads.models.hooks import with_patterns
from mechheads.models.model import Model, encoder_of, model_name, shape_of
from mechheads.prompts import Pair
from mechheads.runs.frames import tidy
from mechheads.runs.result import Result

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go


@dataclass(frozen=True)
class Patterns(Result):
    """The attention weights of every head on one prompt; 0 on closed edges."""

    model: str
    tokens: tuple[str, ...]
    weights: Float[Tensor, "layer head query key"]

    @property
    def edges(self) -> int:
        """Edges with a weight above 0."""
        return int((self.weights > 0).sum())

    @property
    def possible(self) -> int:
        """Causal edges of all heads."""
        layers, heads, n, _ = self.weights.shape
        return layers * heads * n * (n + 1) // 2

    @property
    def headline(self) -> dict[str, Any]:
        """The key numbers."""
        return {"tokens": len(self.tokens), "edges": self.edges, "causal_edges": self.possible}

    @property
    def sentence(self) -> str:
        """The headline as a sentence."""
        return (
            f"{self.model} uses {self.edges:,} of {self.possible:,} causal attention edges "
            f"({self.edges / self.possible:.2%}) on a prompt of {len(self.tokens)} tokens."
        )

    def frame(self) -> "pd.DataFrame":
        """A tidy frame of the causal edges: layer, head, query, key, weight."""
        frame: Any = tidy(("layer", "head", "query", "key"), {"weight": self.weights})
        return frame[frame["key"] <= frame["query"]].reset_index(drop=True)

    def plot(self, heads: Any = None, **options: Any) -> "go.Figure":
        """A small square per head; for given heads a large one each, with the tokens.

        `heads`: "L9H6", "L9H6,L9H9", (9, 6), or a list of these.
        """
        return super().plot(heads=heads, **options)


def attend(model: Model, text: str | Pair) -> Patterns:
    """Run a text once and keep the attention pattern of every head.

    Args:
        model: what `mechheads.load` returns
        text: a prompt of two tokens or more, or a pair, whose clean prompt is run

    Returns:
        Patterns: the tokens, and a weight per layer, head, query and key; `.plot("L9H6")` draws
        one head. Costs one forward pass.

    >>> import mechheads
    >>> found = mechheads.attend(mechheads.load("mini"), "Mary and John went to the store.")
    >>> found.weights.shape == (4, 8, len(found.tokens), len(found.tokens))
    True
    """
    layers, heads = shape_of(model).grid
    every = [(layer, head) for layer in range(layers) for head in range(heads)]
    tokens, weights = attend_heads(model, text, every)
    return Patterns(model_name(model), tuple(tokens), weights.unflatten(0, (layers, heads)))


@torch.inference_mode()
def attend_heads(
    model: Model, text: Any, heads: Sequence[tuple[int, int]]
) -> tuple[list[str], Float[Tensor, "head query key"]]:
    """Run the text once and keep its tokens and the patterns of the given heads."""
    text = getattr(text, "clean", text)
    if not isinstance(text, str):
        raise MechheadsError(
            f"Expected a text or a pair of prompts, got {type(text).__name__}. Give prompts[0]."
        )
    ids = encoder_of(model).ids(text)
    if not 1 < len(ids) <= shape_of(model).context:
        raise MechheadsError(
            f"The prompt has {len(ids)} tokens, but {model_name(model)} takes 2 to "
            f"{shape_of(model).context}. Give another prompt."
        )
    kept = torch.zeros(len(heads), len(ids), len(ids))

    def see(layer: int, pattern: Float[Tensor, "row head query key"]) -> None:
        for i, (other, head) in enumerate(heads):
            if other == layer:
                kept[i] = pattern[0, head].cpu()

    with_patterns(model, torch.tensor([ids]), see)
    return encoder_of(model).texts(ids), kept
