"""Figures of certainty: inclusion by rank, alternative circuits, groups of prompts."""

from typing import TYPE_CHECKING

from mechheads.heads import name_of
from mechheads.reports.theme import COLORS, escaped, styled

from .alternatives import Alternatives
from .inclusion import POSSIBLE, Inclusion
from .mixture import PromptClusters

if TYPE_CHECKING:
    import plotly.graph_objects as go

INSIDE, OUTSIDE = COLORS[0], COLORS[4]
SYMBOLS = ("triangle-down-open", "square-open", "circle-open", "triangle-up-open", "diamond-open")
MOST = 60  # heads drawn
HOWS = {
    "circuit": "the circuit",
    "disjoint": "none of its heads",
    "core": "of its heads only what<br>nothing replaces",
    "penalised": "reuse penalised",
}


def draw_inclusion(found: Inclusion) -> "go.Figure":
    """A bar per head in ranking order: how often it is in the circuit; markers: other thresholds.

    Ends one head after the last that is in on 5% of the samples, at any threshold.
    """
    import plotly.graph_objects as go

    inside = set(found.members)
    often = [
        max(float(found.frequency[head]), float(found.by_threshold[(slice(None), *head)].max()))
        for head in found.ranking
    ]
    last = max(i for i, head in enumerate(found.ranking) if often[i] >= POSSIBLE or head in inside)
    shown = found.ranking[: min(last + 2, MOST)]
    names = [name_of(*head) for head in shown]
    figure = go.Figure()
    kept_for = "" if found.threshold is None else f"to explain {found.threshold:.0%}: "
    first = f"{kept_for}the first {len(found.members)} of the ranking"
    for color, name, kept in ((INSIDE, first, True), (OUTSIDE, "later heads", False)):
        some = [head for head in shown if (head in inside) == kept]
        figure.add_bar(
            x=[name_of(*head) for head in some],
            y=found.of(some),
            name=name,
            marker={"color": color, "pattern": {"shape": "" if kept else "/"}},
            hovertemplate="%{x}: %{y:.0%} of samples<extra></extra>",
        )
    for i, (threshold, shares) in enumerate(zip(found.thresholds, found.by_threshold, strict=True)):
        if threshold == found.threshold:
            continue
        figure.add_scatter(
            x=names,
            y=[float(shares[head]) for head in shown],
            mode="markers",
            name=f"to explain {threshold:.0%}",
            marker={"symbol": SYMBOLS[i % len(SYMBOLS)], "size": 8, "color": "#000000"},
            hovertemplate=f"%{{x}}, to explain {threshold:.0%}: %{{y:.0%}}<extra></extra>",
        )
    figure.update_xaxes(
        title_text="head, in ranking order",
        categoryorder="array",
        categoryarray=names,
        tickangle=-60 if len(names) > 12 else 0,
        tickmode="array" if len(names) <= 40 else None,
        tickvals=names if len(names) <= 40 else None,
    )
    figure.update_yaxes(title_text="in the circuit, share of samples", tickformat=".0%")
    figure.update_yaxes(range=[-0.03, 1.05])
    return styled(
        figure, height=400, margin={"t": 20, "r": 20}, legend={"orientation": "h", "y": -0.3}
    )


def draw_alternatives(found: Alternatives) -> "go.Figure":
    """What each circuit explains of the judging prompts, with intervals over prompts."""
    import plotly.graph_objects as go

    frame = found.frame()
    names = [
        f"{HOWS[how]}{f' ({number})' if number > 1 else ''}<br>{size} head{'s' * (size != 1)}"
        for number, how, size in zip(frame["circuit"], frame["how"], frame["size"], strict=True)
    ]
    values = frame["faithfulness"]
    figure = go.Figure(
        go.Bar(
            x=names,
            y=values,
            error_y={"array": frame["ci_high"] - values, "arrayminus": values - frame["ci_low"]},
            marker={"color": [INSIDE, *[OUTSIDE] * (len(frame) - 1)]},
            customdata=frame[["heads", "jaccard"]].to_numpy(),
            hovertemplate="%{y:.1%}, overlap %{customdata[1]:.2f}<br>%{customdata[0]}"
            "<extra></extra>",
        )
    )
    figure.add_hline(
        y=found.threshold,
        line={"color": "#000000", "dash": "dash", "width": 1.5},
        opacity=1,
        annotation={"text": f"threshold {found.threshold:.0%}", "x": 1, "xanchor": "left"},
    )
    figure.update_xaxes(title_text="circuit")
    figure.update_yaxes(title_text="explained effect", tickformat=".0%", rangemode="tozero")
    return styled(figure, height=400, margin={"t": 20, "r": 110})


def draw_clusters(found: PromptClusters) -> "go.Figure":
    """A row per group of prompts: the mean effect of the heads that are strongest in any."""
    import plotly.graph_objects as go

    heads = sorted({head for group in range(found.groups) for head in found.strongest(group, 8)})
    rows = [[float(means[head]) for head in heads] for means in found.means]
    largest = max(abs(value) for row in rows for value in row) or 1.0
    names = [
        escaped(f"group {group + 1} ({int((found.members == group).sum())} prompts)")
        for group in range(found.groups)
    ]
    figure = go.Figure(
        go.Heatmap(
            z=rows,
            x=[name_of(*head) for head in heads],
            y=names,
            colorscale="RdBu_r",
            zmid=0,
            zmin=-largest,
            zmax=largest,
            colorbar={"title": {"text": "mean effect<br>(red helps,<br>blue hinders)"}},
            hovertemplate="%{y}, %{x}: %{z:+.3g}<extra></extra>",
        )
    )
    figure.update_xaxes(title_text="head", tickangle=-60 if len(heads) > 12 else 0)
    figure.update_yaxes(autorange="reversed")
    return styled(figure, height=180 + 50 * found.groups, margin={"t": 20, "r": 20})
