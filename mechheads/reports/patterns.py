"""Figures of attention patterns: a small square per head, or a few heads large, with the tokens."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.errors import MechheadsError
from mechheads.heads import check_heads, name_of, read_heads
from mechheads.observe.patterns import Patterns

from .heads import BLUES, axes_of
from .theme import escaped, every, labels, styled

if TYPE_CHECKING:
    import plotly.graph_objects as go


def draw_patterns(found: Patterns, heads: Any = None) -> "go.Figure":
    """A small square per head, a row per layer; for given heads a large one each."""
    if heads is None:
        return draw_patterns_by_head([found])
    chosen = list(dict.fromkeys(read_heads(heads)))
    if not chosen:
        raise MechheadsError("plot got no head. Name one, such as 'L0H1', or leave heads out.")
    check_heads(chosen, *found.weights.shape[:2])
    weights = torch.stack([found.weights[head] for head in chosen])
    return draw_weights([name_of(*head) for head in chosen], found.tokens, weights)


def draw_patterns_summed(models: Sequence[Patterns]) -> "go.Figure":
    """One panel per model: the weights summed over all heads, with the tokens along both axes."""
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
        n, named = len(patterns.tokens), labels(patterns.tokens)
        figure.add_heatmap(
            z=_causal(patterns.weights.sum((0, 1))),
            zmin=0,
            zmax=top,
            colorscale=BLUES,
            customdata=[[(query, key) for key in named] for query in named],
            hovertemplate="from %{customdata[0]}<br>to %{customdata[1]}<br>%{z:.3f}<extra></extra>",
            showscale=i == len(models) - 1,
            colorbar={"title": {"text": "weight, sum<br>over heads"}},
            **place,
        )
        ticks = {"tickvals": list(range(n)), "ticktext": named}
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
    styled(figure, height=max(420, 200 + 22 * longest), margin={"t": 60, "r": 20})
    return figure


def draw_patterns_by_head(models: Sequence[Patterns]) -> "go.Figure":
    """A small square per head, a row per layer, models side by side."""
    from plotly.subplots import make_subplots

    layers = max(p.weights.shape[0] for p in models)
    # A narrow empty column separates two models.
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
        places = _places(patterns.tokens)
        for layer in range(patterns.weights.shape[0]):
            for head in range(patterns.weights.shape[1]):
                figure.add_heatmap(
                    z=_causal(patterns.weights[layer, head]),
                    x=places,
                    y=places,
                    zmin=0,
                    zmax=1,
                    colorscale=BLUES,
                    hovertemplate=f"{escaped(patterns.model)} L{layer}H{head}<br>"
                    "from %{y}<br>to %{x}<br>%{z:.3f}<extra></extra>",
                    showscale=start == 1 and layer == head == 0,
                    colorbar={"title": {"text": "weight"}},
                    row=layer + 1,
                    col=start + head,
                )
    bare: Any = {"showticklabels": False, "ticks": "", "showgrid": False, "mirror": True}
    figure.update_xaxes(type="category", **bare)
    figure.update_yaxes(type="category", autorange="reversed", **bare)
    for start in starts[1:-1]:
        figure.update_xaxes(visible=False, col=start - 1)
        figure.update_yaxes(visible=False, col=start - 1)
    figure.update_annotations(font_size=10)
    height = 80 + 120 * layers
    for start, patterns in zip(starts, models, strict=False):
        ends = [start, start + patterns.weights.shape[1] - 1]
        left, right = (axes_of(figure, 1, column).xaxis.domain for column in ends)
        figure.add_annotation(
            text=f"<b>{escaped(patterns.model)}</b>",
            x=(left[0] + right[1]) / 2,
            y=1 + 35 / (height - 90),
            xref="paper",
            yref="paper",
            showarrow=False,
        )
    whole: Any = {"xref": "paper", "yref": "paper", "showarrow": False}
    figure.add_annotation(text="attended token (key)", x=0.5, y=0, yshift=-26, **whole)
    figure.add_annotation(
        text="attending token (query)", x=0, y=0.5, xshift=-22, textangle=-90, **whole
    )
    styled(figure, height=height + 20, margin={"t": 70, "b": 40, "l": 50})
    return figure


def draw_weights(
    names: Sequence[str], tokens: Sequence[str], weights: Float[Tensor, "head query key"]
) -> "go.Figure":
    """One panel per head, up to three in a row, with tokens along the axes where there is room."""
    from plotly.subplots import make_subplots

    columns = min(3, len(names))
    rows = -(-len(names) // columns)
    n, room = len(tokens), 84 // columns
    side = {1: max(340, min(900, 22 * n)), 2: 400, 3: 300}[columns]
    figure = make_subplots(
        rows,
        columns,
        subplot_titles=list(names),
        shared_xaxes=True,
        shared_yaxes=True,
        horizontal_spacing=0.02,
        vertical_spacing=0.1 / rows,
    )
    places = _places(tokens)
    for i, name in enumerate(names):
        figure.add_heatmap(
            z=_causal(weights[i]),
            x=places,
            y=places,
            zmin=0,
            zmax=1,
            colorscale=BLUES,
            hovertemplate=f"{name}<br>from %{{y}}<br>to %{{x}}<br>%{{z:.3f}}<extra></extra>",
            showscale=i == 0,
            colorbar={"title": {"text": "weight"}},
            row=i // columns + 1,
            col=i % columns + 1,
        )
    step = every(n, room)
    ticks: Any = {
        "type": "category",
        "tickvals": places[::step],
        "ticktext": labels(tokens)[::step],
        "showgrid": False,
        "tickfont": {"size": 9 if columns > 1 or n > 40 else 11},
    }
    figure.update_xaxes(tickangle=-90, **ticks)
    figure.update_yaxes(autorange="reversed", **ticks)
    for column in range(1, columns + 1):  # the last row may have fewer panels
        low = rows if (rows - 1) * columns + column <= len(names) else rows - 1
        below: Any = {"row": low, "col": column, "showticklabels": True}
        figure.update_xaxes(title_text="attended token (key)", **below)
    figure.update_yaxes(title_text="attending token (query)", col=1)
    styled(figure, height=140 + side * rows, margin={"t": 40, "r": 20})
    return figure


def _places(tokens: Sequence[str]) -> list[str]:
    """The tokens with their positions: a token may occur several times."""
    return [f"{i} {named}" for i, named in enumerate(labels(tokens))]


def _causal(weights: Float[Tensor, "query key"]) -> list[list[float | None]]:
    """The weights, with None where an edge is closed or masked."""
    return [[round(value, 4) or None for value in row] for row in weights.tolist()]
