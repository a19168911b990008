"""The look of figures: colours, fonts, and escaping of names for plotly."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import plotly.graph_objects as go

# Okabe-Ito colours, distinguishable with any colour vision; lines also differ in dashes.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
FONT: Mapping[str, Any] = {"family": "system-ui, sans-serif", "size": 13}


def styled(figure: "go.Figure", **layout: Any) -> "go.Figure":
    """Apply the style that all figures share."""
    return figure.update_layout(template="simple_white", font=FONT, **layout)


def band(figure: Any, x: Any, low: Any, high: Any, color: str, **place: Any) -> None:
    """Shade the area between two curves."""
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
    """Escape a name for a figure: plotly would interpret tags, and %{x} in hover texts."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return text.replace("%{", "%\u200b{")


def label(token: str) -> str:
    """Format a token for a figure: plotly would drop spaces at its ends."""
    return escaped(repr(token)[1:-1] if not token.isprintable() else token.replace(" ", "␣"))
