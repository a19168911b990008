"""The path graph: how the heads of a circuit feed each other and the logits.

1. The paths inside the circuit, from a head to the query, key or value of a later one or straight
   to the logits, are sorted by strength. The strongest are drawn, one arrow each.
2. Heads at neither end of a drawn path are left out. The others stand in rows by layer, from the
   bottom up, below the logits (path_layout.py).
3. A line style and a side of the receiver's box tell q, k and v apart; the colour is the sign.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from mechheads.heads import name_of
from mechheads.metrics import label_of
from mechheads.reports.theme import COLORS, styled
from mechheads.scoring.edge_attribution import EdgeEffects

from .circuit import Head
from .path_layout import LANE, Layout, lay_out

if TYPE_CHECKING:
    import plotly.graph_objects as go

HELPS, HINDERS = COLORS[1], COLORS[0]
# For each input: its name, its line style, and where its arrows enter the receiver's box.
INPUTS = {
    "q": ("query (q)", "solid", -0.22),
    "k": ("key (k)", "dash", 0.0),
    "v": ("value (v)", "dot", 0.22),
}
BOX, EDGE = 0.38, 0.15  # from the middle of a head's box to its sides, and to its top
NARROW, WIDE = 16, 22  # widths of the graph, in heads, for smaller letters and for scrolling
STEPS = 12  # points of a curve from row to row: each can be hovered over


@dataclass(frozen=True)
class HeadPath:
    """The effect of what one head writes on what another reads; positive helps.

    Without a receiver, the path leads straight to the logits.
    """

    sender: Head
    receiver: Head | None
    input: str
    effect: float

    @property
    def name(self) -> str:
        """For example L1H3 → L3H4.q."""
        to = f"{name_of(*self.receiver)}.{self.input}" if self.receiver else "logits"
        return f"{name_of(*self.sender)} → {to}"


def paths_inside(effects: EdgeEffects, heads: Sequence[Head]) -> list[HeadPath]:
    """All paths between these heads and to the logits that have an effect, strongest first."""
    inside = set(heads)
    rows: list[dict[str, Any]] = effects.frame().to_dict("records")
    found = [
        HeadPath(sender, receiver, row["input"], row["effect"])
        for row in rows
        if (sender := (row["from_layer"], row["from_head"])) in inside
        and (receiver := (row["to_layer"], row["to_head"])) in inside
        and row["input"] in INPUTS
    ]
    if effects.logits is not None:
        found += [
            HeadPath((layer, head), None, "logits", effect)
            for layer, row in enumerate(effects.logits.tolist())
            for head, effect in enumerate(row)
            if (layer, head) in inside
        ]
    return sorted((path for path in found if path.effect), key=lambda path: -abs(path.effect))


def draw_paths(effects: EdgeEffects, heads: Sequence[Head], k: int = 40) -> "go.Figure":
    """The k strongest paths between these heads and to the logits, as arrows from the bottom up."""
    import plotly.graph_objects as go

    every = paths_inside(effects, heads)
    shown = every[:k]
    layout = lay_out(list(dict.fromkeys((path.sender, path.receiver) for path in shown)))
    joined = [head for head in layout.places if head]
    figure = go.Figure()
    for path in reversed(shown):  # the strongest on top
        _add_arrow(figure, path, layout, abs(path.effect) / abs(shown[0].effect))
    for head, (x, y) in layout.places.items():
        side = BOX if head else layout.logits / 2
        figure.add_shape(
            x0=x - side,
            x1=x + side,
            y0=y - EDGE,
            y1=y + EDGE,
            fillcolor="#ffffff",
            line={"color": "#1a1a1a", "width": 1},
        )
        figure.add_annotation(
            x=x,
            y=y,
            text=name_of(*head) if head else "<b>logits</b>",
            showarrow=False,
            font={"size": 11 if layout.width <= NARROW else 10},
        )
    styles = [(f"into the {name}", dash, "#1a1a1a") for name, dash, _ in INPUTS.values()]
    for name, dash, color in (("helps", "solid", HELPS), ("hinders", "solid", HINDERS), *styles):
        line = {"color": color, "width": 2.5, "dash": dash}
        figure.add_scatter(x=[None], y=[None], mode="lines", line=line, name=name)
    half = max(8.0, layout.width + 0.5) / 2
    rows = len(layout.layers)
    figure.update_xaxes(visible=False, range=[-half, half])
    figure.update_yaxes(
        title_text="layer",
        tickvals=list(range(rows)),
        ticktext=[str(layer) for layer in layout.layers],
        range=[-0.4, (rows if None in layout.places else rows - 1) + 0.4],
        showgrid=False,
        zeroline=False,
    )
    metric = label_of(effects.metric)
    styled(
        figure,
        title={
            "text": f"{len(shown):,} strongest of {len(every):,} paths, {len(joined)} of "
            f"{len(set(heads))} heads; effect on the {metric}",
            "font": {"size": 14},
        },
        height=170 + (115 if rows <= 6 else 95) * rows,
        width=None if layout.width <= WIDE else 45 * layout.width,
        margin={"t": 50, "r": 20},
        legend={"orientation": "h", "y": -0.02, "itemclick": False, "itemdoubleclick": False},
        hovermode="closest",
    )
    return figure


def _add_arrow(figure: Any, path: HeadPath, layout: Layout, strength: float) -> None:
    """A curve from the top of the sender's box, along its lanes, into the receiver from below.

    The arrows of a pair to q, k and v run side by side.
    """
    _, dash, side = INPUTS.get(path.input, ("", "solid", 0.0))
    (x, y), *lanes, (end, top) = layout.arrows[path.sender, path.receiver]
    knots = [(x + side, y + EDGE), *((lane + LANE * side, row) for lane, row in lanes)]
    knots.append((end + (side if path.receiver else _landing(path.sender, layout)), top - EDGE))
    points = [knots[0]]
    for (x0, y0), (x1, y1) in pairwise(knots):
        # Flat curves to different inputs keep a distance: q bends early, v late.
        early, late = y0 + (0.45 + side) * (y1 - y0), y1 - (0.45 - side) * (y1 - y0)
        points += [
            (_bezier(t, x0, x0, x1, x1), _bezier(t, y0, early, late, y1))
            for t in (i / STEPS for i in range(1, STEPS + 1))
        ]
    width = 1 + 3.5 * strength
    color = HELPS if path.effect > 0 else HINDERS
    figure.add_scatter(
        x=[round(x, 4) for x, _ in points],
        y=[round(y, 4) for _, y in points],
        mode="lines+markers",
        line={"color": color, "width": width, "dash": dash},
        marker={
            "symbol": "arrow",
            "angleref": "previous",
            "size": [0] * (len(points) - 1) + [7 + 1.5 * width],
            "color": color,
            "opacity": 1,
            "line": {"width": 0},
        },
        opacity=0.45 + 0.5 * strength,
        name=path.name,
        hovertemplate=f"{path.name}: {path.effect:+.3g}<extra></extra>",
        showlegend=False,
    )


def _landing(sender: Head, layout: Layout) -> float:
    """Where on the logits' box the arrow of a head ends: side by side, in the order they come."""
    coming = {pair[0]: knots[-2] for pair, knots in layout.arrows.items() if pair[1] is None}
    order = sorted(coming, key=lambda head: coming[head])
    return 0.25 * (order.index(sender) - (len(order) - 1) / 2)


def _bezier(t: float, a: float, b: float, c: float, d: float) -> float:
    s = 1 - t
    return s**3 * a + 3 * s * s * t * b + 3 * s * t * t * c + t**3 * d
