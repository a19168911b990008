"""Figures with a cell or a bar per head: effects, types, positions, edges."""

from typing import TYPE_CHECKING, Any

import torch

from mechheads.heads import name_of
from mechheads.metrics import label_of
from mechheads.observe.activity import HeadActivity
from mechheads.observe.edges import EdgeCounts
from mechheads.observe.evaluation import Evaluation
from mechheads.observe.head_types import HeadTypes
from mechheads.scoring.edge_attribution import EdgeEffects
from mechheads.scoring.effects import HeadEffects, PositionEffects

from .theme import COLORS, escaped, every, styled

if TYPE_CHECKING:
    import plotly.graph_objects as go

BLUES = "Blues"
SIGNS = "<br>(red helps,<br>blue hinders)"
GAP = 60  # pixels between two panels


def draw_effects(effects: HeadEffects) -> "go.Figure":
    """Layer by head, red for heads that help, blue for those that hinder, white at 0."""
    import plotly.graph_objects as go

    scores = effects.scores
    low, high = effects.interval()
    p_values = effects.p_values
    layers, heads = scores.shape
    letter = effects.letter
    largest = float(scores.abs().max()) or 1.0
    said = effects.quantity or f"effect on<br>{label_of(effects.metric)}"
    hover = [
        [
            f"L{layer}{letter}{head}<br>effect {float(scores[layer, head]):.4f}"
            + (
                f"<br>95% {float(low[layer, head]):.4f} to {float(high[layer, head]):.4f}<br>"
                f"p (corrected) {float(p_values[layer, head]):.2g}"
                if effects.sampled
                else ""
            )
            + (f"<br>{effects.roles.text(layer, head)}" if effects.roles else "")
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
    figure.update_xaxes(
        title_text="head" if letter == "H" else "key-value head", dtick=every(heads, 40)
    )
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
    return _grids(panels, "mean attention<br>weight (0 to 1)")


def draw_activity(found: HeadActivity) -> "go.Figure":
    """Two heat maps, layer by head: attention on the first token, and what a head writes."""
    panels = {
        "attention on the first token": found.first_token.tolist(),
        "length written, of the residual stream's": found.written.tolist(),
    }
    return _grids(panels, "share")


def draw_edge_counts(found: EdgeCounts) -> "go.Figure":
    """Layer by head: the share of its causal edges that a head uses."""
    share = found.used.sum(0) / found.possible.sum()
    return _grids({"share of causal edges used": share.tolist()}, "share<br>(0 to 1)")


def draw_positions(found: PositionEffects) -> "go.Figure":
    """By position or span: all heads of a layer together, and below them the strongest heads."""
    from plotly.subplots import make_subplots

    scores, together = found.scores, found.by_layer.mean(0)
    layers, heads, n = scores.shape
    shown = sorted(found.ranking()[:24])
    names = [found.name(*head) for head in shown]
    unit = "head" if found.unit == "head" else "key-value head"
    some = "" if len(shown) == layers * heads else f"{len(shown)} strongest of {layers * heads} "
    sizes = [max(90, (18 if layers <= 24 else 10) * layers), 18 * len(shown)]
    figure = make_subplots(
        2,
        1,
        shared_xaxes=True,
        row_heights=sizes,
        vertical_spacing=GAP / (sum(sizes) + GAP),
        subplot_titles=("all heads of a layer together", f"{some}{unit}s, one at a time"),
    )
    at = "position " if found.by == "position" else ""
    hover = [f"at {at}{escaped(name)}" for name in found.positions]
    alone = torch.stack([scores[head] for head in shown])
    for row, panel, rows, what in ((1, together, range(layers), "layer "), (2, alone, names, "")):
        largest = float(panel.abs().max()) or 1.0
        ticks = [largest * i / row for i in range(-row, row + 1)]  # the upper panel is small
        low, high = axes_of(figure, row, 1).yaxis.domain
        figure.add_heatmap(
            z=panel.tolist(),
            y=list(rows),
            colorscale="RdBu_r",
            zmid=0,
            zmin=-largest,
            zmax=largest,
            colorbar={
                "y": (low + high) / 2,
                "len": high - low,
                "tickvals": ticks,
                "ticktext": [f"{tick:.2g}" for tick in ticks],
            },
            customdata=[hover] * len(rows),
            hovertemplate=f"{what}%{{y}} %{{customdata}}: %{{z:+.4f}}<extra></extra>",
            row=row,
            col=1,
        )
    step = every(n, 40 if found.by == "span" else 30)
    named = [_short(name) for name in found.positions[::step]]
    longest = max(map(len, named))
    level = n // step * (longest + 2) <= 100  # characters that fit next to each other
    figure.update_xaxes(
        tickvals=list(range(0, n, step)),
        ticktext=list(map(escaped, named)),
        tickangle=0 if level else -45 if n <= 12 else -90,
        tickfont={"size": 11},
    )
    along = "position of the token, from 0" if found.by == "position" else "span of the prompt"
    figure.update_xaxes(title_text=along, row=2)
    figure.update_yaxes(autorange="reversed", showgrid=False)
    figure.update_yaxes(title_text="layer", dtick=every(layers, 24), row=1)
    figure.update_yaxes(title_text=unit, dtick=1, row=2)
    title: Any = {
        "text": f"effect on {escaped(label_of(found.metric))}: red helps, blue hinders",
        "font": {"size": 13},
        "x": 0,
        "xref": "paper",
        "y": 1,
        "yref": "paper",
        "yanchor": "bottom",
        "pad": {"b": 36},
    }
    return styled(
        figure,
        height=sum(sizes) + GAP + 170 + (0 if level else 6 * longest),
        margin={"t": 90, "r": 20},
        title=title,
    )


def _short(name: str) -> str:
    """A name with room below an axis; the hover text has all of it."""
    return name if len(name) <= 20 else f"{name[:19]}…"


def draw_edge_effects(found: EdgeEffects, k: int = 20) -> "go.Figure":
    """Bars: the k strongest paths from a head to the query, key or value of a later one.

    The paths straight to the logits are in `found.logits`.
    """
    import plotly.graph_objects as go

    rows: Any = found.strongest(k).to_dict("records")
    names = [
        f"{name_of(r['from_layer'], r['from_head'])} → {name_of(r['to_layer'], r['to_head'])}"
        f".{escaped(r['input'])}"
        for r in rows
    ]
    figure = go.Figure()
    for sign, color, hatch in (("helps", COLORS[1], ""), ("hinders", COLORS[0], "/")):
        part = [i for i, r in enumerate(rows) if (r["effect"] > 0) == (sign == "helps")]
        figure.add_bar(
            x=[rows[i]["effect"] for i in part],
            y=[names[i] for i in part],
            orientation="h",
            name=sign,
            error_x={"array": [rows[i]["se"] for i in part], "thickness": 1},
            marker={"color": color, "pattern": {"shape": hatch, "solidity": 0.15}},
            hovertemplate="%{y}: %{x:+.4f}<extra></extra>",
        )
    title = f"effect on {label_of(found.metric)}, ± standard error"
    figure.update_xaxes(title_text=title)
    figure.update_yaxes(
        title_text=f"path ({len(rows)} strongest of {len(found.frame()):,})",
        categoryorder="array",
        categoryarray=names,
        autorange="reversed",
        dtick=1,
    )
    return styled(
        figure,
        height=160 + 22 * len(rows),
        margin={"t": 40, "r": 20, "l": 160},
        legend={"orientation": "h", "y": 1, "yanchor": "bottom"},
        showlegend=True,
        barmode="overlay",
    )


def draw_evaluation(found: Evaluation) -> "go.Figure":
    """The metric of every prompt, clean and corrupted."""
    import plotly.graph_objects as go

    figure = go.Figure()
    for i, (side, values) in enumerate(found.sides.items()):
        figure.add_box(
            y=values[found.metric].tolist(),
            name={"corrupt": "corrupted"}.get(side, side),
            boxpoints="all",
            marker={"color": COLORS[i], "size": 5},
            showlegend=False,
        )
    figure.update_xaxes(title_text="prompts")
    figure.update_yaxes(title_text=label_of(found.metric))
    return styled(figure, height=420, margin={"t": 30, "r": 20})


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
    heads = len(next(iter(panels.values()))[0])
    figure.update_xaxes(title_text="head", dtick=every(heads, 42 // len(panels)))
    figure.update_yaxes(autorange="reversed", dtick=1 if layers <= 16 else 2, showgrid=False)
    figure.update_yaxes(title_text="layer", col=1)
    return styled(figure, height=max(320, 120 + 26 * layers), margin={"t": 50, "r": 20})


def axes_of(figure: Any, row: int, column: int) -> Any:
    """The x axis and the y axis of a panel."""
    return figure.get_subplot(row, column)
