"""What every head attends to on one prompt, and pictures of it for models side by side."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from .batches import token_ids, token_texts
from .errors import MechheadsError
from .models import Model, with_patterns

if TYPE_CHECKING:
    import plotly.graph_objects as go

COLORS = "Blues"


@dataclass(frozen=True)
class Patterns:
    """The attention weights of every head on one prompt; 0 where an edge is closed or to come."""

    model: str
    tokens: list[str]
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


@torch.inference_mode()
def attend(model: Model, text: str) -> Patterns:
    """Run the text once and keep the pattern of every head."""
    ids = token_ids(model, text)
    if not 1 < len(ids) <= model.cfg.n_ctx:
        raise MechheadsError(
            f"The prompt has {len(ids)} tokens, {model.cfg.model_name} takes 2 to "
            f"{model.cfg.n_ctx}. Give another --prompt."
        )
    kept: list[Tensor] = []
    with_patterns(model, torch.tensor([ids]), lambda _, pattern: kept.append(pattern[0].cpu()))
    return Patterns(model.cfg.model_name, token_texts(model, ids), torch.stack(kept))


def draw_sums(models: Sequence[Patterns]) -> "go.Figure":
    """One panel per model: the weights of all heads added up, with the tokens along both axes."""
    from plotly.subplots import make_subplots

    titles = [
        f"{p.model}: {p.edges:,} of {p.possible:,} edges ({p.edges / p.possible:.2%})"
        for p in models
    ]
    figure = make_subplots(1, len(models), subplot_titles=titles, horizontal_spacing=0.16)
    top = max(p.weights.sum((0, 1)).max().item() for p in models)
    for i, patterns in enumerate(models):
        place: Any = {"row": 1, "col": i + 1}
        n = len(patterns.tokens)
        figure.add_heatmap(
            z=_causal(patterns.weights.sum((0, 1))),
            zmin=0,
            zmax=top,
            colorscale=COLORS,
            customdata=[[(q, k) for k in patterns.tokens] for q in patterns.tokens],
            hovertemplate="from %{customdata[0]}<br>to %{customdata[1]}<br>%{z:.3f}<extra></extra>",
            showscale=i == len(models) - 1,
            colorbar={"title": {"text": "weight, sum<br>over heads"}},
            **place,
        )
        ticks = {"tickvals": list(range(n)), "ticktext": [_label(t) for t in patterns.tokens]}
        figure.update_xaxes(
            title_text="attended token (key)", tickangle=-60, showgrid=False, **ticks, **place
        )
        figure.update_yaxes(
            title_text="attending token (query)" if i == 0 else None,
            autorange="reversed",
            showgrid=False,
            **ticks,
            **place,
        )
    longest = max(len(p.tokens) for p in models)
    figure.update_layout(
        template="simple_white", height=max(420, 200 + 22 * longest), margin={"t": 60, "r": 20}
    )
    return figure


def draw_heads(models: Sequence[Patterns]) -> "go.Figure":
    """A small square for every head, a row per layer, the models beside each other."""
    from plotly.subplots import make_subplots

    layers = max(p.weights.shape[0] for p in models)
    columns = [p.weights.shape[1] for p in models]
    titles = [
        f"L{layer}H{head}" if layer < p.weights.shape[0] else ""
        for layer in range(layers)
        for p in models
        for head in range(p.weights.shape[1])
    ]
    figure = make_subplots(
        layers,
        sum(columns),
        subplot_titles=titles,
        horizontal_spacing=0.006,
        vertical_spacing=0.12 / layers,
    )
    for i, patterns in enumerate(models):
        for layer in range(patterns.weights.shape[0]):
            for head in range(columns[i]):
                weights = patterns.weights[layer, head]
                figure.add_heatmap(
                    z=_causal(weights),
                    zmin=0,
                    zmax=1,
                    colorscale=COLORS,
                    hovertemplate=f"{patterns.model} L{layer}H{head}<br>"
                    "query %{y}, key %{x}: %{z:.3f}<extra></extra>",
                    showscale=i == layer == head == 0,
                    colorbar={"title": {"text": "weight"}},
                    row=layer + 1,
                    col=sum(columns[:i]) + head + 1,
                )
    figure.update_xaxes(showticklabels=False, ticks="", showgrid=False, mirror=True)
    figure.update_yaxes(
        showticklabels=False, ticks="", showgrid=False, autorange="reversed", mirror=True
    )
    figure.update_annotations(font_size=10)
    figure.update_layout(template="simple_white", height=90 + 110 * layers, margin={"t": 40})
    return figure


def _causal(weights: Float[Tensor, "query key"]) -> list[list[float | None]]:
    """The weights with nothing where a query cannot look."""
    return [
        [value if k <= q else None for k, value in enumerate(row)]
        for q, row in enumerate(weights.tolist())
    ]


def _label(token: str) -> str:
    """A token on an axis: plotly would read tags in it, and drop spaces at its ends."""
    shown = repr(token)[1:-1] if not token.isprintable() else token.replace(" ", "␣")
    return shown.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
