"""Masking figures: curves over the number of heads, and whose heads a function needs."""

from itertools import cycle
from typing import TYPE_CHECKING, Any

from mechheads.reports.theme import COLORS, band, escaped, styled

from .experiment import Masking
from .matrix import Matrix

if TYPE_CHECKING:
    import plotly.graph_objects as go

ACCURACY, TEXT = COLORS[0], COLORS[1]
MARKS = ("circle", "square", "diamond", "cross", "x", "star")


def draw_masking(found: Masking) -> "go.Figure":
    """One panel per function, over k.

    Top (or given) heads are solid with 95% intervals over questions, random ones dashed with the
    range of draws; accuracies are blue, text metrics red. The leftmost point is the unmasked model.
    """
    from plotly.subplots import make_subplots

    table: Any = found.summary()
    functions = list(dict.fromkeys(table["function"]))
    columns = min(2, len(functions))
    rows = -(-len(functions) // columns)
    figure = make_subplots(
        rows,
        columns,
        subplot_titles=[f"<b>{escaped(name)}</b>" for name in functions],
        shared_yaxes=True,
        horizontal_spacing=0.06,
        vertical_spacing=0.28 / rows,
    )
    sizes = sorted(set(table["k"]))
    left = sizes[0] / 2
    metrics, chosen = list(dict.fromkeys(table["metric"])), found.chosen
    marks = dict(zip(metrics, cycle(MARKS), strict=False))
    for i, function in enumerate(functions):
        place: Any = {"row": i // columns + 1, "col": i % columns + 1}
        for metric in metrics:
            part = table[(table["function"] == function) & (table["metric"] == metric)]
            color = ACCURACY if metric in found.accuracies else TEXT
            label = escaped(found.labels[metric])
            whole = float(part["whole"].iloc[0])
            x = [left, *part["k"]]
            if part["random"].notna().all():
                band(figure, x, [whole, *part["worst"]], [whole, *part["best"]], color, **place)
                figure.add_scatter(
                    x=x,
                    y=[whole, *part["random"]],
                    name=f"{label}, random heads",
                    legendgroup=f"{metric} random",
                    showlegend=i == 0,
                    mode="lines+markers",
                    line={"color": color, "dash": "dash"},
                    marker={"symbol": f"{marks[metric]}-open", "size": 7},
                    hovertemplate="%{x} random heads: %{y:.2f}<extra></extra>",
                    **place,
                )
            figure.add_scatter(
                x=x,
                y=[whole, *part[chosen]],
                name=f"{label}, {chosen} heads",
                legendgroup=f"{metric} {chosen}",
                showlegend=i == 0,
                mode="lines+markers",
                line={"color": color, "width": 2.5},
                marker={"symbol": marks[metric], "size": 7},
                error_y={
                    "array": [0, *(part[f"{chosen}_high"] - part[chosen])],
                    "arrayminus": [0, *(part[chosen] - part[f"{chosen}_low"])],
                    "thickness": 1,
                    "width": 3,
                },
                cliponaxis=False,
                hovertemplate=f"%{{x}} {chosen} heads: %{{y:.2f}}<extra></extra>",
                **place,
            )
    figure.update_xaxes(
        type="log",
        tickvals=[left, *sizes],
        ticktext=["none", *map(str, sizes)],
        showticklabels=True,
    )
    figure.update_xaxes(title_text="heads masked (log scale)", row=rows)
    figure.update_yaxes(title_text="mean over answers", col=1)
    figure.update_yaxes(range=[0, 1.02])
    styled(
        figure,
        height=140 + 300 * rows,
        margin={"t": 70, "r": 20},
        legend={"orientation": "h", "y": -0.14 - 0.1 / rows},
    )
    return figure


def draw_matrix(found: Matrix) -> "go.Figure":
    """What masking one function's heads costs another, beyond equally many random heads."""
    import plotly.graph_objects as go

    lost = (found.random - found.values).tolist()
    text = [
        [
            f"{found.values[i, j].item():.2f}<br>({found.random[i, j].item():.2f})"
            for j in range(len(found.tested))
        ]
        for i in range(len(found.masked))
    ]
    most = max(0.05, *(abs(value) for row in lost for value in row))
    figure = go.Figure(
        go.Heatmap(
            z=lost,
            x=[escaped(name) for name in found.tested],
            y=[escaped(name) for name in found.masked],
            text=text,
            texttemplate="%{text}",
            colorscale="RdBu_r",
            zmid=0,
            zmin=-most,
            zmax=most,
            colorbar={"title": {"text": f"{escaped(found.label)}<br>lost beyond<br>random"}},
            hovertemplate=(
                "heads of %{y} masked, %{x} tested<br>lost beyond random %{z:.2f}<extra></extra>"
            ),
        )
    )
    figure.update_xaxes(title_text="function tested")
    figure.update_yaxes(
        title_text=f"first {found.k} heads masked, by function", autorange="reversed"
    )
    styled(
        figure,
        height=180 + 70 * len(found.masked),
        margin={"t": 20, "r": 20, "l": 160},
    )
    return figure
