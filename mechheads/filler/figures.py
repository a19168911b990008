"""Filler figures: accuracies, a head's attention, where attention moves."""

from typing import TYPE_CHECKING, Any

from mechheads.heads import name_of
from mechheads.reports.theme import COLORS, band, escaped, labels, styled

from .accuracy import Accuracies
from .average_attention import Attention
from .experiment import Filler

if TYPE_CHECKING:
    import plotly.graph_objects as go

STYLES = {
    "none": ("#555555", "solid", ""),
    "mless": (COLORS[0], "solid", "/"),
    "mful": (COLORS[1], "dash", "x"),
    "random": (COLORS[2], "dot", "."),
    "arm": (COLORS[3], "dashdot", "-"),
}
TITLES = {"place": "place of the filler", "length": "filler tokens", "filler": "filler"}
NAMES = {
    "none": "no filler",
    "mless": "meaningless filler",
    "mful": "repeated word",
    "random": "random sentences",
    "arm": "ARM, no filler",
}


def draw_accuracies(found: Accuracies) -> "go.Figure":
    """Bars grouped by model, a bar per condition, with 95% intervals and p-values above them.

    For a sweep, its curves.
    """
    import plotly.graph_objects as go

    if found.axis != "condition":
        return draw_sweep(found, TITLES[found.axis])
    frame: Any = found.frame()
    figure = go.Figure()
    models = list(dict.fromkeys(frame["model"]))
    conditions = list(dict.fromkeys(frame[found.axis]))
    width = 0.8 / len(conditions)
    for i, condition in enumerate(conditions):
        part = frame[frame[found.axis] == condition]
        color, _, pattern = STYLES[condition]
        x = [models.index(name) + (i - (len(conditions) - 1) / 2) * width for name in part["model"]]
        figure.add_bar(
            x=x,
            y=part["accuracy"],
            width=0.95 * width,
            customdata=[escaped(name) for name in part["model"]],
            name=NAMES[condition],
            marker={"color": color, "pattern": {"shape": pattern, "solidity": 0.3}},
            error_y={
                "type": "data",
                "symmetric": False,
                "array": part["high"] - part["accuracy"],
                "arrayminus": part["accuracy"] - part["low"],
                "color": "#000000",
            },
            hovertemplate="%{customdata}: %{y:.1%}<extra>" + condition + "</extra>",
        )
        figure.add_scatter(
            x=x,
            y=part["high"],
            text=["" if p != p else f"p = {p:.2g}" for p in part["p_value"]],
            mode="text",
            textposition="top center",
            textfont={"size": 11},
            hoverinfo="skip",
            showlegend=False,
        )
    figure.update_xaxes(tickvals=list(range(len(models))), ticktext=[escaped(m) for m in models])
    figure.update_yaxes(title_text="accuracy, 95% interval", tickformat=".0%", range=[0, 1.12])
    styled(
        figure,
        height=440,
        margin={"t": 20, "r": 20},
        legend={"orientation": "h", "y": -0.15},
    )
    return figure


def draw_filler(found: Filler) -> "go.Figure":
    """The accuracies of all models and conditions."""
    return draw_accuracies(found.accuracies)


def draw_sweep(found: Accuracies, title: str) -> "go.Figure":
    """Accuracy over the varied setting, one line per model, with 95% intervals."""
    import plotly.graph_objects as go

    frame: Any = found.frame()
    figure = go.Figure()
    for i, model in enumerate(dict.fromkeys(frame["model"])):
        part = frame[frame["model"] == model]
        figure.add_scatter(
            x=[escaped(str(value)) for value in part[found.axis]],
            y=part["accuracy"],
            name=escaped(str(model)),
            # Only lengths have values in between.
            mode="lines+markers" if found.axis == "length" else "markers",
            line={"color": COLORS[i % 7], "dash": ("solid", "dash", "dot")[i % 3]},
            marker={"size": 9, "symbol": ("circle", "square", "diamond")[i % 3]},
            error_y={
                "type": "data",
                "symmetric": False,
                "array": part["high"] - part["accuracy"],
                "arrayminus": part["accuracy"] - part["low"],
            },
            hovertemplate="%{x}: %{y:.1%}<extra></extra>",
        )
    figure.update_xaxes(title_text=title, type="category")
    figure.update_yaxes(title_text="accuracy, 95% interval", tickformat=".0%", range=[0, 1.05])
    styled(
        figure,
        height=380,
        margin={"t": 20, "r": 20},
        legend={"orientation": "h", "y": -0.25},
        showlegend=True,
    )
    return figure


def draw_attention(found: Attention) -> "go.Figure":
    """The mean weight of every key: original tokens only, and the whole sequence."""
    from plotly.subplots import make_subplots

    frame: Any = found.frame()
    head = name_of(*found.head)
    figure = make_subplots(
        2,
        1,
        subplot_titles=["<b>original tokens only</b>", "<b>whole sequence</b>"],
        vertical_spacing=0.16,
    )
    for row, panel in enumerate(("original", "full"), start=1):
        for condition in dict.fromkeys(frame["condition"]):
            part = frame[(frame["panel"] == panel) & (frame["condition"] == condition)]
            if not len(part):
                continue
            color, dash, _ = STYLES[str(condition)]
            place: Any = {"row": row, "col": 1}
            band(figure, part["position"], part["low"], part["high"], color, **place)
            figure.add_scatter(
                x=part["position"],
                y=part["weight"],
                name=NAMES[str(condition)],
                legendgroup=condition,
                showlegend=row == 1,
                mode="lines",
                line={"color": color, "dash": dash, "width": 2},
                customdata=labels([str(token) for token in part["token"]]),
                hovertemplate="%{x} %{customdata}: %{y:.4f}<extra></extra>",
                **place,
            )
    run = max(found.runs.values())
    place_of_run: Any = {"row": 2, "col": 1}
    if run:
        figure.add_vrect(
            x0=found.cut - 0.5,
            x1=found.cut + run - 0.5,
            fillcolor="#999999",
            opacity=0.15,
            line_width=0,
            annotation_text="inserted",
            annotation_position="top left",
            **place_of_run,
        )
    figure.update_xaxes(title_text="position of the key", row=2)
    figure.update_yaxes(title_text=f"mean weight, {head}", rangemode="tozero")
    styled(
        figure,
        height=640,
        margin={"t": 70, "r": 20},
        legend={"orientation": "h", "y": -0.12},
    )
    return figure


def draw_change(found: Attention) -> "go.Figure":
    """Layer by head: the total change in the weights of the original tokens."""
    import plotly.graph_objects as go

    layers = len(found.change)
    figure = go.Figure(
        go.Heatmap(
            z=found.change.tolist(),
            colorscale="Blues",
            zmin=0,
            colorbar={"title": {"text": "total<br>change"}},
            hovertemplate="L%{y}H%{x}: %{z:.4f}<extra></extra>",
        )
    )
    figure.update_xaxes(title_text="head", dtick=1)
    figure.update_yaxes(
        title_text="layer", autorange="reversed", dtick=1 if layers <= 16 else 2, showgrid=False
    )
    styled(
        figure,
        height=max(300, 120 + 22 * layers),
        margin={"t": 20, "r": 20},
    )
    return figure
