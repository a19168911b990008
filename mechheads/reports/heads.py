"""Figures with a cell or a panel per head: effects, types, positions, attention patterns."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jaxtyping import Float
from torch import Tensor

from mechheads.heads import name_of
from mechheads.metrics.token import METRICS
from mechheads.observe.edges import EdgeCounts
from mechheads.observe.evaluation import Evaluation
from mechheads.observe.head_types import HeadTypes
from mechheads.observe.patterns import Patterns
from mechheads.scoring.effects import HeadEffects, PositionEffects
from mechheads.scoring.path_patching import EdgeEffects

from .theme import COLORS, escaped, label, styled

if TYPE_CHECKING:
    import plotly.graph_objects as go

BLUES = "Blues"


def draw_effects(effects: HeadEffects) -> "go.Figure":
    """Layer by head, red for heads that help, blue for those that hinder, white at 0."""
    import plotly.graph_objects as go

    scores = effects.scores
    low, high = effects.interval()
    p_values = effects.p_values
    layers, heads = scores.shape
    letter = effects.letter
    largest = float(scores.abs().max()) or 1.0
    said = effects.quantity or f"effect on<br>{METRICS[effects.metric].label}"
    hover = [
        [
            f"L{layer}{letter}{head}<br>effect {float(scores[layer, head]):.4f}<br>"
            f"95 % {float(low[layer, head]):.4f} to {float(high[layer, head]):.4f}<br>"
            f"p (corrected) {float(p_values[layer, head]):.2g}"
            for head in range(heads)
        ]
        for layer in range(layers)
    ]
    figure = go.Figure(
        go.Heatmap(
            z=scores.tolist(),
            text=hover,
            hovertemplate="%{text}<extra></extra>",
            colorscale="RdBu_r",
            zmid=0,
            zmin=-largest,
            zmax=largest,
            colorbar={"title": {"text": said}},
        )
    )
    figure.update_xaxes(title_text="head" if letter == "H" else "key-value head", dtick=1)
    figure.update_yaxes(
        title_text="layer", autorange="reversed", dtick=1 if layers <= 16 else 2, showgrid=False
    )
    styled(
        figure,
        height=max(320, 120 + 26 * layers),
        margin={"t": 30, "r": 20},
    )
    return figure


def draw_head_types(found: HeadTypes) -> "go.Figure":
    """One heat map per head type: mean attention weight, layer by head."""
    panels = {kind: scores.tolist() for kind, scores in found.scores.items()}
    return _grids(panels, "attention<br>weight")


def draw_edge_counts(found: EdgeCounts) -> "go.Figure":
    """Layer by head: the share of its causal edges that a head uses."""
    share = found.used.sum(0) / found.possible.sum()
    return _grids({"share of causal edges used": share.tolist()}, "share")


def draw_positions(found: PositionEffects) -> "go.Figure":
    """One row per strong head, one column per position: the head's effect at that position."""
    import plotly.graph_objects as go

    scores = found.scores
    layers, heads, _ = scores.shape
    sizes = scores.abs().amax(2).flatten()
    shown = sorted(sizes.argsort(descending=True)[:24].tolist())
    largest = float(sizes.max()) or 1.0
    figure = go.Figure(
        go.Heatmap(
            z=[scores[divmod(i, heads)].tolist() for i in shown],
            y=[name_of(*divmod(i, heads)) for i in shown],
            colorscale="RdBu_r",
            zmid=0,
            zmin=-largest,
            zmax=largest,
            colorbar={"title": {"text": f"effect on<br>{METRICS[found.metric].label}"}},
            hovertemplate="%{y} at position %{x}: %{z:.4f}<extra></extra>",
        )
    )
    figure.update_xaxes(title_text="position", dtick=1)
    some = "" if len(shown) == layers * heads else f" ({len(shown)} strongest)"
    figure.update_yaxes(title_text=f"head{some}", autorange="reversed", dtick=1)
    return styled(figure, height=140 + 18 * len(shown), margin={"t": 30, "r": 20})


def draw_edge_effects(found: EdgeEffects, k: int = 20) -> "go.Figure":
    """Bars: the k strongest paths from a head to the query, key or value of a later one."""
    import plotly.graph_objects as go

    rows: Any = found.strongest(k).to_dict("records")
    names = [
        f"{name_of(r['from_layer'], r['from_head'])} → {name_of(r['to_layer'], r['to_head'])}"
        f".{r['input']}"
        for r in rows
    ]
    figure = go.Figure(
        go.Bar(
            x=[r["effect"] for r in rows],
            y=names,
            orientation="h",
            error_x={"array": [r["se"] for r in rows], "thickness": 1},
            marker={"color": [COLORS[1] if r["effect"] > 0 else COLORS[0] for r in rows]},
            hovertemplate="%{y}: %{x:.4f}<extra></extra>",
        )
    )
    title = f"effect on {METRICS[found.metric].label}, ± standard error"
    figure.update_xaxes(title_text=title)
    figure.update_yaxes(autorange="reversed", dtick=1)
    return styled(figure, height=140 + 22 * len(rows), margin={"t": 30, "r": 20, "l": 140})


def draw_evaluation(found: Evaluation) -> "go.Figure":
    """The metric of every prompt, clean and corrupted."""
    import plotly.graph_objects as go

    figure = go.Figure()
    for i, (side, values) in enumerate((("clean", found.clean), ("corrupted", found.corrupt))):
        figure.add_box(
            y=values[found.metric].tolist(),
            name=side,
            boxpoints="all",
            marker={"color": COLORS[i], "size": 5},
            showlegend=False,
        )
    figure.update_xaxes(title_text="prompts")
    figure.update_yaxes(title_text=METRICS[found.metric].label)
    return styled(figure, height=420, margin={"t": 30, "r": 20})


def draw_patterns(found: Patterns) -> "go.Figure":
    """A small square per head, a row per layer."""
    return draw_patterns_by_head([found])


def _grids(panels: "dict[str, list[list[float]]]", unit: str) -> "go.Figure":
    """Heat maps side by side, layer by head, on a shared scale from 0."""
    from plotly.subplots import make_subplots

    figure = make_subplots(1, len(panels), subplot_titles=list(panels), shared_yaxes=True)
    largest = max(value for grid in panels.values() for row in grid for value in row) or 1.0
    layers = len(next(iter(panels.values())))
    for i, (name, grid) in enumerate(panels.items()):
        figure.add_heatmap(
            z=grid,
            colorscale=BLUES,
            zmin=0,
            zmax=largest,
            showscale=i == 0,
            colorbar={"title": {"text": unit}},
            hovertemplate=f"L%{{y}}H%{{x}}, {name}: %{{z:.3f}}<extra></extra>",
            row=1,
            col=i + 1,
        )
    figure.update_xaxes(title_text="head", dtick=1 if layers <= 16 else 2)
    figure.update_yaxes(autorange="reversed", dtick=1 if layers <= 16 else 2, showgrid=False)
    figure.update_yaxes(title_text="layer", col=1)
    return styled(figure, height=max(320, 120 + 26 * layers), margin={"t": 50, "r": 20})


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
        n = len(patterns.tokens)
        figure.add_heatmap(
            z=_causal(patterns.weights.sum((0, 1))),
            zmin=0,
            zmax=top,
            colorscale=BLUES,
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
        for layer in range(patterns.weights.shape[0]):
            for head in range(patterns.weights.shape[1]):
                figure.add_heatmap(
                    z=_causal(patterns.weights[layer, head]),
                    zmin=0,
                    zmax=1,
                    colorscale=BLUES,
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
    styled(figure, height=height, margin={"t": 70, "b": 20})
    return figure


def draw_weights(
    names: Sequence[str], tokens: Sequence[str], weights: Float[Tensor, "head query key"]
) -> "go.Figure":
    """One panel per head, three in a row, with tokens along the axes if there is room."""
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
    # A token may occur several times: its index makes it unique.
    places = [f"{i} {label(token)}" for i, token in enumerate(tokens)]
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
    styled(figure, height=140 + 300 * rows, margin={"t": 40, "r": 20})
    return figure


def _axis(figure: Any, column: int) -> Any:
    """The x axis of the first row's plot in this column."""
    return figure.get_subplot(1, column).xaxis


def _causal(weights: Float[Tensor, "query key"]) -> list[list[float | None]]:
    """The weights, with None where an edge is closed or masked."""
    return [[round(value, 4) or None for value in row] for row in weights.tolist()]
