"""How figures look, and the figure of head effects."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mechheads.metrics.token import METRICS
from mechheads.scoring.effects import HeadEffects

if TYPE_CHECKING:
    import plotly.graph_objects as go

# Okabe and Ito's colours, told apart by every kind of colour vision; lines also differ in dashes.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
FONT: Mapping[str, Any] = {"family": "system-ui, sans-serif", "size": 13}


def heat_map(effects: HeadEffects) -> "go.Figure":
    """Layer by head, red for heads that help, blue for those that hinder, white at 0."""
    import plotly.graph_objects as go

    scores = effects.scores
    low, high = effects.interval()
    p_values = effects.p_values
    layers, heads = scores.shape
    letter = "H" if effects.unit == "head" else "KV"
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
    figure.update_layout(
        template="simple_white",
        font=FONT,
        height=max(320, 120 + 26 * layers),
        margin={"t": 30, "r": 20},
    )
    return figure


def band(figure: Any, x: Any, low: Any, high: Any, color: str, **place: Any) -> None:
    """Shade what lies between two curves."""
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    figure.add_scatter(
        x=[*x, *reversed(list(x))],
        y=[*high, *reversed(list(low))],
        mode="lines",
        fill="toself",
        fillcolor=f"rgba({red},{green},{blue},0.18)",
        line={"width": 0},
        hoverinfo="skip",
        showlegend=False,
        **place,
    )


def escaped(text: str) -> str:
    """A name in a figure: plotly would read tags in it."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def label(token: str) -> str:
    """A token in a figure: plotly would drop spaces at its ends."""
    return escaped(repr(token)[1:-1] if not token.isprintable() else token.replace(" ", "␣"))
