"""Circuit figures: curves, comparisons, paths between heads, attention of the strongest heads."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mechheads.heads import name_of
from mechheads.reports.heads import draw_weights
from mechheads.reports.theme import COLORS, band, escaped, styled

from .circuit import Head
from .comparison import Comparison
from .curve import Curve
from .discovery import Discovery, Sample
from .validation import Faithfulness

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

OURS, OTHERS, RANDOM = COLORS[0], COLORS[1], "#777777"


def draw_curve(curve: Curve, threshold: float = 0.9) -> "go.Figure":
    """f(k) with its interval over prompts, random rankings, and where the threshold is reached."""
    import plotly.graph_objects as go

    frame = curve.frame()
    figure = go.Figure()
    band(figure, frame["k"], frame["random_low"], frame["random_high"], RANDOM)
    figure.add_scatter(
        x=frame["k"],
        y=frame["random_mean"],
        name=f"random rankings ({len(curve.random_explained)}), mean and 95 % band",
        line={"color": RANDOM, "dash": "dot"},
        hovertemplate="random, k = %{x}: %{y:.1%}<extra></extra>",
    )
    band(figure, frame["k"], frame["ci_low"], frame["ci_high"], OURS)
    added = ["none", *(name_of(*head) for head in curve.ranking)]
    figure.add_scatter(
        x=frame["k"],
        y=frame["explained"],
        name="this ranking, 95 % interval over prompts",
        line={"color": OURS, "width": 3},
        mode="lines+markers",
        marker={"size": 5},
        customdata=added,
        hovertemplate="k = %{x}, adds %{customdata}: %{y:.1%}<extra></extra>",
    )
    needed = curve.needed(threshold)
    reached = float(curve.explained[needed])
    figure.add_scatter(
        x=[0, needed, needed],
        y=[threshold, threshold, min(0.0, float(curve.explained.min()))],
        name=f"{threshold:.0%} with {needed} heads ({reached:.0%})",
        mode="lines",
        line={"color": "#000000", "dash": "dash", "width": 1.5},
        hoverinfo="skip",
    )
    figure.update_xaxes(title_text="heads kept (k), in ranking order", rangemode="tozero")
    figure.update_yaxes(title_text="explained effect f(k)", tickformat=".0%")
    styled(
        figure,
        height=460,
        margin={"t": 20, "r": 20},
        legend={"orientation": "h", "y": -0.2},
        hovermode="x",
    )
    return figure


def draw_discovery(found: Discovery) -> "go.Figure":
    """The curve with the run's threshold."""
    return draw_curve(found.curve, found.threshold)


def draw_contributions(found: Faithfulness) -> "go.Figure":
    """Explained effect lost without each head of the circuit, with 95 % intervals."""
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
    figure.update_yaxes(title_text="explained effect lost", tickformat=".0%")
    return styled(figure, height=380, margin={"t": 20, "r": 20})


def draw_comparison(comparison: Comparison, *, edges: bool = False) -> "go.Figure":
    """One panel per task: both curves with bands, and the threshold that joins them.

    The x axis is heads kept, or the attention edges that these heads use per prompt.
    """
    from plotly.subplots import make_subplots

    tasks, columns = comparison.tasks, min(3, len(comparison.tasks))
    rows = -(-len(tasks) // columns)
    ratios = [task.edges if edges else task.heads for task in tasks]
    unit = "edges" if edges else "heads"
    titles = [
        f"<b>{escaped(task.task)}</b><br>{r.standard:,.3g} and {r.sparse:,.3g} {unit}: {r.words}"
        if r.standard < 1000
        else f"<b>{escaped(task.task)}</b><br>{r.standard:,.0f} and {r.sparse:,.0f} {unit}: "
        f"{r.words}"
        for task, r in zip(tasks, ratios, strict=True)
    ]
    figure = make_subplots(
        rows,
        columns,
        subplot_titles=titles,
        shared_yaxes=True,
        horizontal_spacing=0.09,
        vertical_spacing=0.44 / rows,
    )
    share = not edges and not comparison.same_size
    for i, (task, ratio) in enumerate(zip(tasks, ratios, strict=True)):
        place: Any = {"row": i // columns + 1, "col": i % columns + 1}
        sides = (
            (task.standard, "standard", OURS, "solid"),
            (task.sparse, "sparse", OTHERS, "dashdot"),
        )
        for side, role, color, dash in sides:
            frame = side.curve.frame()
            x = side.edges.mean(1).numpy() if edges else frame["k"].to_numpy()
            x = 100 * x / x.max() if share else x
            name = f"{role}: {escaped(side.curve.model)}"
            # With no heads kept there are no edges, and a log axis has no 0.
            kept = frame[x > 0] if edges else frame
            x = x[x > 0] if edges else x
            band(figure, x, kept["ci_low"], kept["ci_high"], color, **place)
            figure.add_scatter(
                x=x,
                y=kept["explained"],
                name=name,
                legendgroup=role,
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
        words = "edges used per prompt" if edges else "% of heads kept" if share else "heads kept"
        axis: Any = {"type": "log", "dtick": 1} if edges else {"rangemode": "tozero"}
        figure.update_xaxes(title_text=words, **axis, **place)
    figure.update_yaxes(tickformat=".0%", showticklabels=True)
    figure.update_yaxes(title_text="explained effect", col=1)
    figure.update_annotations(font_size=12)
    styled(
        figure,
        height=120 + 360 * rows,
        margin={"t": 70, "r": 20},
        legend={"orientation": "h", "y": -0.16 / rows - 0.05},
    )
    return figure


def draw_paths(paths: "pd.DataFrame", heads: Sequence[Head]) -> "go.Figure":
    """Heads of the circuit by layer, from the bottom up, and the paths between them as arrows.

    `paths` has from_layer, from_head, to_layer, to_head, input and effect, strongest first; the
    inputs of a pair of heads share one arrow, drawn at the strength of the strongest.
    """
    import plotly.graph_objects as go

    spots = _spots(heads)
    arrows: dict[tuple[Head, Head], list[tuple[str, float]]] = {}
    rows: list[dict[str, Any]] = paths.to_dict("records")
    for row in rows:
        pair = (row["from_layer"], row["from_head"]), (row["to_layer"], row["to_head"])
        arrows.setdefault(pair, []).append((row["input"], row["effect"]))
    largest = max((abs(row["effect"]) for row in rows), default=0.0) or 1.0
    figure = go.Figure()
    for (sender, receiver), inputs in arrows.items():
        strongest = inputs[0][1]
        strength = abs(strongest) / largest
        figure.add_annotation(
            x=spots[receiver][0],
            y=spots[receiver][1],
            ax=spots[sender][0],
            ay=spots[sender][1],
            xref="x",
            yref="y",
            axref="x",
            ayref="y",
            text="",
            showarrow=True,
            arrowhead=2,
            arrowwidth=0.8 + 3.2 * strength,
            arrowcolor=COLORS[1] if strongest > 0 else COLORS[0],
            opacity=0.35 + 0.6 * strength,
            standoff=16,
            startstandoff=16,
        )
    figure.add_scatter(
        x=[(spots[a][0] + spots[b][0]) / 2 for a, b in arrows],
        y=[(spots[a][1] + spots[b][1]) / 2 for a, b in arrows],
        mode="markers",
        marker={"size": 12, "color": "rgba(0,0,0,0)"},
        text=[
            "<br>".join(
                f"{name_of(*a)} to {name_of(*b)}.{part}: {effect:.4f}" for part, effect in inputs
            )
            for (a, b), inputs in arrows.items()
        ],
        hovertemplate="%{text}<extra></extra>",
        showlegend=False,
    )
    figure.add_scatter(
        x=[spots[head][0] for head in heads],
        y=[spots[head][1] for head in heads],
        text=[name_of(*head) for head in heads],
        mode="markers+text",
        marker={"size": 34, "color": "#ffffff", "line": {"color": "#1a1a1a", "width": 1.5}},
        textfont={"size": 10},
        hoverinfo="skip",
        showlegend=False,
    )
    for name, color in (("helps", COLORS[1]), ("hinders", COLORS[0])):
        figure.add_scatter(
            x=[None], y=[None], mode="lines", line={"color": color, "width": 3}, name=name
        )
    used = sorted({layer for layer, _ in heads})
    figure.update_xaxes(visible=False)
    figure.update_yaxes(
        title_text="layer", tickvals=used, range=[min(used) - 0.7, max(used) + 0.7], showgrid=False
    )
    styled(
        figure,
        height=max(320, 140 + 90 * len(used)),
        margin={"t": 20, "r": 20},
        legend={"orientation": "h", "y": -0.05},
    )
    return figure


def draw_sample(sample: Sample) -> "go.Figure":
    """The attention of the strongest heads on one prompt, with its tokens."""
    names = [name_of(*head) for head in sample.heads]
    return draw_weights(names, sample.tokens, sample.weights)


def _spots(heads: Sequence[Head]) -> dict[Head, tuple[float, float]]:
    """Positions: the heads of a layer centred side by side, every other layer slightly shifted."""
    spots: dict[Head, tuple[float, float]] = {}
    for i, layer in enumerate(sorted({layer for layer, _ in heads})):
        here = sorted(head for other, head in heads if other == layer)
        for j, head in enumerate(here):
            spots[(layer, head)] = (
                j - (len(here) - 1) / 2 + (0.25 if i % 2 else 0.0),
                float(layer),
            )
    return spots
