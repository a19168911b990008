"""The look of figures: colours, fonts, and escaping of names for plotly."""

from collections.abc import Mapping, Sequence
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


def labels(tokens: Sequence[str]) -> list[str]:
    """Format the tokens of a prompt, each once per place.

    The tokens of a character that has several are all shown as that character and numbered: the
    last adds it to the text, those before it are empty (`Encoder.texts`).
    """
    named = [label(token) for token in tokens]
    empty = 0
    for i, token in enumerate(tokens):
        if empty and token and not token[0].isascii():
            for part in range(empty + 1):
                named[i - empty + part] = f"{label(token[0])} {part + 1}/{empty + 1}"
            named[i] += label(token[1:])
        empty = 0 if token else empty + 1
    return named


def every(n: int, room: int) -> int:
    """The step between ticks if n stand where there is room for so many: 1, 2, 5, 10, ..."""
    steps = (factor * 10**power for power in range(12) for factor in (1, 2, 5))
    return next(step for step in steps if n <= step * room)
