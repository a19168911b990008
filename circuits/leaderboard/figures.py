"""Figures of a leaderboard: a dot and an interval per method."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from mechheads.reports.theme import COLORS, escaped, styled

from .board import Leaderboard
from .rounds import RANDOM
from .standings import MEASURES, Estimate

if TYPE_CHECKING:
    import plotly.graph_objects as go

OURS, BASELINE = COLORS[0], "#777777"


def draw_leaderboard(found: Leaderboard, *, rank: bool = False) -> "go.Figure":
    """A panel per measure: the mean of every method, or its mean rank, with 95% intervals.

    Methods are in the order of their mean rank over CPR, CMD and N, the best on top; random
    rankings are grey squares.
    """
    of: Callable[[str], Estimate | None] = found.rank if rank else found.mean
    panels = {name: one for name in MEASURES if (one := of(name)) is not None}
    return _panels(found, panels, rank)


def _panels(found: Leaderboard, panels: dict[str, Estimate], rank: bool) -> "go.Figure":
    from plotly.subplots import make_subplots

    titles = [f"<b>{found.title(name)}</b><br>{MEASURES[name].better}" for name in panels]
    if rank:
        titles = [f"<b>{found.title(name)}</b><br>1 is best" for name in panels]
    columns = max(1, len(panels))
    figure = make_subplots(
        1, columns, subplot_titles=titles, shared_yaxes=True, horizontal_spacing=0.05
    )
    order, methods = found.order, found.methods
    for column, (name, estimate) in enumerate(panels.items(), start=1):
        for baseline in (False, True):
            shown = [m for m in order if (m == RANDOM) == baseline]
            at = [methods.index(m) for m in shown]
            mean, low, high = (
                part[at].nan_to_num(nan=0.0).tolist()
                if part is estimate.mean
                else part[at].tolist()
                for part in (estimate.mean, estimate.low, estimate.high)
            )
            pairs = list(zip(mean, low, high, strict=True))
            figure.add_scatter(
                x=mean,
                y=[escaped(m) for m in shown],
                mode="markers",
                marker={
                    "color": BASELINE if baseline else OURS,
                    "symbol": "square-open" if baseline else "circle",
                    "size": 9,
                },
                error_x={
                    "visible": bool(estimate.over),
                    "array": [h - m if h == h else 0 for m, _, h in pairs],
                    "arrayminus": [m - b if b == b else 0 for m, b, _ in pairs],
                    "thickness": 1.6,
                    "width": 4,
                },
                customdata=[[b, h] for _, b, h in pairs],
                hovertemplate=(
                    "%{y}: %{x:.3f} (%{customdata[0]:.3f} to %{customdata[1]:.3f})<extra></extra>"
                ),
                showlegend=False,
                row=1,
                col=column,
            )
        words = "mean rank" if rank else f"mean {found.title(name)}"
        percent = name == "needed_share" and not rank
        figure.update_xaxes(
            title_text="mean share of the heads" if percent else words,
            tickformat=".0%" if percent else None,
            showgrid=True,
            range=[0.7, len(order) + 0.3] if rank else None,
            col=column,
        )
    figure.update_yaxes(
        categoryorder="array",
        categoryarray=[escaped(m) for m in reversed(order)],
        showgrid=True,
        range=[-0.6, len(order) - 0.4],
    )
    figure.update_yaxes(title_text="method", col=1)
    figure.update_annotations(font_size=12)
    return styled(figure, height=170 + 30 * len(order), margin={"t": 60, "r": 20})
