"""What every head attends to on one prompt, and pictures of it for models side by side."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.errors import MechheadsError
from mechheads.models.hooks import with_patterns
from mechheads.models.model import Model, encoder_of, model_name, shape_of
from mechheads.reports.theme import escaped, label

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


def attend(model: Model, text: str) -> Patterns:
    """Run the text once and keep the pattern of every head."""
    layers, heads = shape_of(model).grid
    every = [(layer, head) for layer in range(layers) for head in range(heads)]
    tokens, weights = attend_heads(model, text, every)
    return Patterns(model_name(model), tokens, weights.unflatten(0, (layers, heads)))


@torch.inference_mode()
def attend_heads(
    model: Model, text: str, heads: Sequence[tuple[int, int]]
) -> tuple[list[str], Float[Tensor, "head query key"]]:
    """Run the text once and keep its tokens and the patterns of some heads."""
    ids = encoder_of(model).ids(text)
    if not 1 < len(ids) <= shape_of(model).context:
        raise MechheadsError(
            f"The prompt has {len(ids)} tokens, {model_name(model)} takes 2 to "
            f"{shape_of(model).context}. Give another prompt."
        )
    kept = torch.zeros(len(heads), len(ids), len(ids))

    def see(layer: int, pattern: Float[Tensor, "row head query key"]) -> None:
        for i, (other, head) in enumerate(heads):
            if other == layer:
                kept[i] = pattern[0, head].cpu()

    with_patterns(model, torch.tensor([ids]), see)
    return encoder_of(model).texts(ids), kept


def draw_sums(models: Sequence[Patterns]) -> "go.Figure":
    """One panel per model: the weights of all heads added up, with the tokens along both axes."""
    from plotly.subplots import make_subplots

    titles = [
        f"{escaped(p.model)}: {p.edges:,} of {p.possible:,} edges ({p.edges / p.possible:.2%})"
        for p in models
    ]
    figure = make_subplots(1, len(models), subplot_titles=titles, horizontal_spacing=0.16)
    # The first query can only attend to itself: its weight would hide all the others.
    top = max(p.weights.sum((0, 1))[1:].max().item() for p in models)
    for i, patterns in enumerate(models):
        place: Any = {"row": 1, "col": i + 1}
        n = len(patterns.tokens)
        figure.add_heatmap(
            z=_causal(patterns.weights.sum((0, 1))),
            zmin=0,
            zmax=top,
            colorscale=COLORS,
            customdata=[[(label(q), label(k)) for k in patterns.tokens] for q in patterns.tokens],
            hovertemplate="from %{customdata[0]}<br>to %{customdata[1]}<br>%{z:.3f}<extra></extra>",
            showscale=i == len(models) - 1,
            colorbar={"title": {"text": "weight, sum<br>over heads"}},
            **place,
        )
        ticks = {"tickvals": list(range(n)), "ticktext": [label(t) for t in patterns.tokens]}
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
    # A narrow empty column stands between two models.
    starts, titles = [1], [[] for _ in range(layers)]
    for p in models:
        heads = p.weights.shape[1]
        starts.append(starts[-1] + heads + 1)
        for layer, row in enumerate(titles):
            known = layer < p.weights.shape[0]
            row += [f"L{layer}H{head}" if known else "" for head in range(heads)] + [""]
    columns = starts[-1] - 2
    figure = make_subplots(
        layers,
        columns,
        subplot_titles=[title for row in titles for title in row[:columns]],
        column_widths=[0.3 if c + 1 in starts else 1.0 for c in range(1, columns + 1)],
        horizontal_spacing=0.08 / columns,
        vertical_spacing=0.22 / layers,
    )
    for start, patterns in zip(starts, models, strict=False):
        for layer in range(patterns.weights.shape[0]):
            for head in range(patterns.weights.shape[1]):
                figure.add_heatmap(
                    z=_causal(patterns.weights[layer, head]),
                    zmin=0,
                    zmax=1,
                    colorscale=COLORS,
                    hovertemplate=f"{escaped(patterns.model)} L{layer}H{head}<br>"
                    "query %{y}, key %{x}: %{z:.3f}<extra></extra>",
                    showscale=start == 1 and layer == head == 0,
                    colorbar={"title": {"text": "weight"}},
                    row=layer + 1,
                    col=start + head,
                )
    bare: Any = {"showticklabels": False, "ticks": "", "showgrid": False, "mirror": True}
    figure.update_xaxes(**bare)
    figure.update_yaxes(autorange="reversed", **bare)
    for start in starts[1:-1]:
        figure.update_xaxes(visible=False, col=start - 1)
        figure.update_yaxes(visible=False, col=start - 1)
    figure.update_annotations(font_size=10)
    height = 80 + 120 * layers
    for start, patterns in zip(starts, models, strict=False):
        ends = [start, start + patterns.weights.shape[1] - 1]
        left, right = (_axis(figure, column).domain for column in ends)
        figure.add_annotation(
            text=f"<b>{escaped(patterns.model)}</b>",
            x=(left[0] + right[1]) / 2,
            y=1 + 35 / (height - 90),
            xref="paper",
            yref="paper",
            showarrow=False,
        )
    figure.update_layout(template="simple_white", height=height, margin={"t": 70, "b": 20})
    return figure


def draw_weights(
    names: Sequence[str], tokens: Sequence[str], weights: Float[Tensor, "head query key"]
) -> "go.Figure":
    """A panel per head, three in a row; the tokens are along the axes where there is room."""
    from plotly.subplots import make_subplots

    columns = min(3, len(names))
    rows = -(-len(names) // columns)
    figure = make_subplots(
        rows,
        columns,
        subplot_titles=list(names),
        shared_xaxes=True,
        shared_yaxes=True,
        horizontal_spacing=0.02,
        vertical_spacing=0.1 / rows,
    )
    # A token may stand at several places: its number tells them apart.
    places = [f"{i} {label(token)}" for i, token in enumerate(tokens)]
    for i, name in enumerate(names):
        figure.add_heatmap(
            z=_causal(weights[i]),
            x=places,
            y=places,
            zmin=0,
            zmax=1,
            colorscale=COLORS,
            hovertemplate=f"{name}<br>from %{{y}}<br>to %{{x}}<br>%{{z:.3f}}<extra></extra>",
            showscale=i == 0,
            colorbar={"title": {"text": "weight"}},
            row=i // columns + 1,
            col=i % columns + 1,
        )
    few = len(tokens) <= 28
    ticks: Any = {
        "type": "category",
        "tickvals": places if few else [],
        "ticktext": [label(token) for token in tokens] if few else [],
        "showgrid": False,
        "tickfont": {"size": 9},
    }
    figure.update_xaxes(tickangle=-90, **ticks)
    figure.update_yaxes(autorange="reversed", **ticks)
    figure.update_xaxes(title_text="attended token (key)", row=rows)
    figure.update_yaxes(title_text="attending token (query)", col=1)
    figure.update_layout(
        template="simple_white", height=140 + 300 * rows, margin={"t": 40, "r": 20}
    )
    return figure


def _axis(figure: Any, column: int) -> Any:
    """The x axis of the first row's plot in this column."""
    return figure.get_subplot(1, column).xaxis


def _causal(weights: Float[Tensor, "query key"]) -> list[list[float | None]]:
    """The weights with nothing where an edge is closed or a query cannot look."""
    return [[round(value, 4) or None for value in row] for row in weights.tolist()]
