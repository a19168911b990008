"""Circuit figures: curves, comparisons, attention of the strongest heads."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mechheads.errors import MechheadsError
from mechheads.heads import name_of
from mechheads.reports.patterns import draw_weights
from mechheads.reports.theme import COLORS, band, escaped, styled

from .comparison import Comparison
from .curve import Curve
from .discovery import Discovery, Sample
from .path_graph import draw_paths
from .validation import Faithfulness

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

OURS, OTHERS, RANDOM = COLORS[0], COLORS[1], "#777777"


def draw_curve(curve: Curve, threshold: float = 0.9) -> "go.Figure":
    """f(k) with its interval over prompts, random rankings, and where the threshold is reached."""
    needed = curve.needed(threshold)
    figure = draw_explained(
        curve.frame(),
        len(curve.random_explained),
        [["none", *(name_of(*head) for head in curve.ranking)][k] for k in curve.at],
        ("k = %{x}", "k = %{x}, adds %{customdata}"),
        (threshold, needed),
        f"{threshold:.0%} with {needed} heads ({curve.explained_at(needed):.0%})",
    )
    figure.update_xaxes(title_text="heads kept (k), in ranking order", rangemode="tozero")
    return figure.update_yaxes(title_text="explained effect f(k)")


def draw_explained(
    frame: "pd.DataFrame",
    draws: int,
    data: Sequence[Any],
    hovers: tuple[str, str],
    reached: tuple[float, int],
    name: str,
) -> "go.Figure":
    """A curve and random rankings with their bands, and dashed lines where the threshold is.

    `hovers` say what x is, for the random rankings and for the curve with its `data`; `reached` is
    the threshold and the x at which it is reached, and `name` says so.
    """
    import plotly.graph_objects as go

    figure, x, lowest = go.Figure(), frame["k"].tolist(), min(0.0, *frame["explained"].tolist())
    band(figure, x, frame["random_low"], frame["random_high"], RANDOM)
    figure.add_scatter(
        x=x,
        y=frame["random_mean"],
        name=f"random rankings ({draws}), mean and 95% band",
        line={"color": RANDOM, "dash": "dot"},
        hovertemplate=f"random, {hovers[0]}: %{{y:.1%}}<extra></extra>",
    )
    band(figure, x, frame["ci_low"], frame["ci_high"], OURS)
    figure.add_scatter(
        x=x,
        y=frame["explained"],
        name="this ranking, 95% interval over prompts",
        line={"color": OURS, "width": 3},
        mode="lines+markers",
        marker={"size": 5},
        customdata=data,
        hovertemplate=f"{hovers[1]}: %{{y:.1%}}<extra></extra>",
    )
    threshold, needed = reached
    figure.add_scatter(
        x=[x[0], needed, needed],
        y=[threshold, threshold, lowest],
        name=name,
        mode="lines",
        line={"color": "#000000", "dash": "dash", "width": 1.5},
        hoverinfo="skip",
    )
    figure.update_yaxes(tickformat=".0%")
    return styled(
        figure,
        height=460,
        margin={"t": 20, "r": 20},
        legend={"orientation": "h", "y": -0.2},
        hovermode="x",
    )


def draw_discovery(found: Discovery, *, paths: bool = False) -> "go.Figure":
    """The curve with the run's threshold; a star is a given circuit, with its interval.

    With `paths`, how the heads of the circuit feed each other and the logits.
    """
    if paths:
        if found.paths is None:
            raise MechheadsError(
                f"The paths of {found.curve.model} were not traced: they cannot be, or the metric "
                f"{found.curve.metric} has no gradient."
            )
        return draw_paths(found.paths, found.faithfulness.heads)
    figure = draw_curve(found.curve, found.threshold)
    if found.is_given:
        numbers, value = found.headline, found.faithfulness.faithfulness
        low, high = (numbers[f"faithfulness_{end}"] for end in ("low", "high"))
        figure.add_scatter(
            x=[found.size],
            y=[value],
            name=f"your circuit ({value:.0%})",
            mode="markers",
            marker={"symbol": "star", "size": 15, "color": OTHERS},
            error_y={"array": [high - value], "arrayminus": [value - low]},
            hovertemplate="your circuit, %{x} heads: %{y:.1%}<extra></extra>",
        )
    return figure


def draw_contributions(found: Faithfulness) -> "go.Figure":
    """Explained effect lost without each head of the circuit, with 95% intervals."""
    import plotly.graph_objects as go

    low, high = found.interval()
    values = found.contribution
    figure = go.Figure(
        go.Bar(
            x=[name_of(*head) for head in found.heads],
            y=values.tolist(),
            error_y={"array": (high - values).tolist(), "arrayminus": (values - low).tolist()},
            marker={"color": OURS},
            hovertemplate="without %{x}: %{y:.1%} less<extra></extra>",
        )
    )
    figure.update_xaxes(title_text="head removed from the circuit")
    figure.update_yaxes(title_text="explained effect lost", tickformat="~%")
    return styled(figure, height=380, margin={"t": 20, "r": 20})


def draw_comparison(comparison: Comparison, *, edges: bool = False) -> "go.Figure":
    """One panel per task: both curves with bands, and the threshold that joins them.

    The x axis is heads kept, or the attention edges that these heads use per prompt.
    """
    tasks = comparison.tasks
    ratios = [task.edges if edges else task.heads for task in tasks]
    unit = "attention edges" if edges else "heads"
    titles = [
        f"<b>{escaped(task.task)}</b><br>{r.standard:,.3g} and {r.sparse:,.3g} {unit}: {r.words}"
        if r.standard < 1000
        else f"<b>{escaped(task.task)}</b><br>{r.standard:,.0f} and {r.sparse:,.0f} {unit}: "
        f"{r.words}"
        for task, r in zip(tasks, ratios, strict=True)
    ]
    figure, places = grid_of_tasks(titles)
    share = not edges and not comparison.same_size
    for i, (task, ratio) in enumerate(zip(tasks, ratios, strict=True)):
        place = places[i]
        sides = (
            (task.standard, escaped(comparison.labels[0]), OURS, "solid"),
            (task.sparse, escaped(comparison.labels[1]), OTHERS, "dashdot"),
        )
        for side, label, color, dash in sides:
            frame = side.curve.frame()
            x = frame["k"].to_numpy()
            x = side.edges.mean(1).numpy()[x] if edges else x
            x = 100 * x / x.max() if share else x
            model = escaped(side.curve.model)
            name = model if model == label else f"{label}: {model}"
            # With no heads kept there are no edges, and a log axis has no 0.
            kept = frame[x > 0] if edges else frame
            x = x[x > 0] if edges else x
            band(figure, x, kept["ci_low"], kept["ci_high"], color, **place)
            figure.add_scatter(
                x=x,
                y=kept["explained"],
                name=name,
                legendgroup=label,
                showlegend=i == 0,
                line={"color": color, "dash": dash, "width": 2.5},
                hovertemplate=f"{name}, " + "%{x:.4g}: %{y:.1%}<extra></extra>",
                **place,
            )
        sizes = (len(task.standard.curve.ranking), len(task.sparse.curve.ranking))
        points = [
            100 * n / size if share else n
            for n, size in zip((ratio.standard, ratio.sparse), sizes, strict=True)
        ]
        figure.add_scatter(
            x=sorted(points),
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
        words = "% of heads kept" if share else "heads kept"
        words = "attention edges used per prompt" if edges else words
        axis: Any = {"type": "log", **log_ticks(figure)} if edges else {"rangemode": "tozero"}
        figure.update_xaxes(title_text=words, **axis, **place)
    return figure


def grid_of_tasks(titles: Sequence[str]) -> "tuple[go.Figure, list[dict[str, Any]]]":
    """A figure with a panel per task, and the places of these: row and column."""
    from plotly.subplots import make_subplots

    columns = min(3, len(titles))
    rows = -(-len(titles) // columns)
    figure = make_subplots(
        rows,
        columns,
        subplot_titles=titles,
        shared_yaxes=True,
        horizontal_spacing=0.09,
        vertical_spacing=0.44 / rows,
    )
    figure.update_yaxes(tickformat=".0%", showticklabels=True)
    figure.update_yaxes(title_text="explained effect", col=1)
    figure.update_annotations(font_size=12)
    styled(
        figure,
        height=120 + 360 * rows,
        margin={"t": 70, "r": 20},
        legend={"orientation": "h", "y": -0.16 / rows - 0.05},
    )
    return figure, [{"row": i // columns + 1, "col": i % columns + 1} for i in range(len(titles))]


def log_ticks(figure: Any) -> dict[str, Any]:
    """Ticks of a log axis: powers of ten, and 2 and 5 between them where there are few."""
    values = [x for trace in figure.data for x in trace.x if x and x > 0]
    powers = range(int(math.log10(min(values))), math.ceil(math.log10(max(values))) + 1)
    steps = (1, 2, 5) if len(powers) <= 3 else (1,)
    ticks = [step * 10**power for power in powers for step in steps]
    return {"tickvals": ticks, "ticktext": [f"{tick:,}" for tick in ticks]}


def draw_sample(sample: Sample) -> "go.Figure":
    """The attention of the strongest heads on one prompt, with its tokens."""
    names = [name_of(*head) for head in sample.heads]
    return draw_weights(names, sample.tokens, sample.weights)
