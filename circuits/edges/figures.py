"""Figures of edge circuits: f(n) on a log axis, and the curves of two models."""

from typing import TYPE_CHECKING

from circuits.figures import OTHERS, OURS, draw_explained, grid_of_tasks, log_ticks
from mechheads.reports.theme import band, escaped

from .comparison import EdgeComparison
from .curve import EdgeCurve
from .discovery import EdgeDiscovery

if TYPE_CHECKING:
    import plotly.graph_objects as go


def draw_edge_curve(curve: EdgeCurve, threshold: float = 0.9) -> "go.Figure":
    """f(n) with its interval over prompts, random rankings, and where the threshold is reached."""
    frame = curve.frame().iloc[1:]  # a log axis has no 0
    total, needed = len(curve.ranking), curve.needed(threshold)
    low, high = curve.needed_interval(threshold)
    figure = draw_explained(
        frame,
        len(curve.random_explained),
        (frame["k"] / total).tolist(),
        ("%{x:,} edges", "%{x:,} edges (%{customdata:.2%})"),
        (threshold, needed),
        f"{threshold:.0%} with {needed:,} edges ({low:,.0f} to {high:,.0f})",
    )
    words = f"edges kept (n of {total:,}), in ranking order"
    figure.update_xaxes(title_text=words, type="log", **log_ticks(figure))
    return figure.update_yaxes(title_text="explained effect f(n)")


def draw_edge_discovery(found: EdgeDiscovery) -> "go.Figure":
    """The curve with the run's threshold."""
    return draw_edge_curve(found.curve, found.threshold)


def draw_edge_comparison(comparison: EdgeComparison) -> "go.Figure":
    """One panel per task: both curves with bands, and the threshold that joins them."""
    titles = [
        f"<b>{escaped(t.task)}</b><br>{t.edges.standard:,.0f} and {t.edges.sparse:,.0f} "
        f"circuit edges: {t.edges.words}"
        for t in comparison.tasks
    ]
    figure, places = grid_of_tasks(titles)
    for i, (task, place) in enumerate(zip(comparison.tasks, places, strict=True)):
        for curve, label, color, dash in (
            (task.standard, escaped(comparison.labels[0]), OURS, "solid"),
            (task.sparse, escaped(comparison.labels[1]), OTHERS, "dashdot"),
        ):
            frame = curve.frame().iloc[1:]
            model = escaped(curve.model)
            name = model if model == label else f"{label}: {model}"
            band(figure, frame["k"], frame["ci_low"], frame["ci_high"], color, **place)
            figure.add_scatter(
                x=frame["k"],
                y=frame["explained"],
                name=name,
                legendgroup=label,
                showlegend=i == 0,
                line={"color": color, "dash": dash, "width": 2.5},
                hovertemplate=f"{name}, " + "%{x:,} edges: %{y:.1%}<extra></extra>",
                **place,
            )
        figure.add_scatter(
            x=sorted([task.edges.standard, task.edges.sparse]),
            y=[comparison.threshold] * 2,
            name=f"{comparison.threshold:.0%} explained",
            legendgroup="threshold",
            showlegend=i == 0,
            mode="lines+markers",
            marker={"size": 8, "color": "#000000", "symbol": "diamond"},
            line={"color": "#000000", "dash": "dash", "width": 1.5},
            hoverinfo="skip",
            **place,
        )
    figure.update_xaxes(title_text="circuit edges kept", type="log", **log_ticks(figure))
    return figure
