"""Gating figures: the three scores of every head, and the effect of closing heads."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mechheads.heads import name_of
from mechheads.reports.theme import COLORS, band, escaped, styled
from mechheads.scoring.gate_roles import NAMES, ROLES, Gates

from .ablation_curves import Ablation
from .contrast import Contrast
from .experiment import Gating

if TYPE_CHECKING:
    import plotly.graph_objects as go

# The paper's green, blue and red in Okabe-Ito shades; line styles differ too.
LINES = {
    "facilitation": (COLORS[2], "solid"),
    "irrelevance": (COLORS[0], "dash"),
    "interference": (COLORS[1], "dot"),
}
SCALES = {"facilitation": "Greens", "irrelevance": "Blues", "interference": "Oranges"}


def draw_scores(found: Gates) -> "go.Figure":
    """Three heat maps of layer by head, from 0 to 1, mean over seeds."""
    from plotly.subplots import make_subplots

    layers, heads = found.plus.shape[1:]
    figure = make_subplots(
        1, 3, subplot_titles=[f"<b>{role}</b>" for role in ROLES], horizontal_spacing=0.09
    )
    for i, role in enumerate(ROLES):
        score = found.score(role)
        mean, low, high = score.mean(0), score.amin(0), score.amax(0)
        hover = [
            [
                f"{name_of(layer, head)}<br>{role} {float(mean[layer, head]):.2f}<br>"
                f"seeds {float(low[layer, head]):.2f} to {float(high[layer, head]):.2f}<br>"
                f"{NAMES[role]} in {int(found.has(role)[:, layer, head].sum())} of "
                f"{len(score)} seeds"
                for head in range(heads)
            ]
            for layer in range(layers)
        ]
        figure.add_heatmap(
            z=mean.tolist(),
            text=hover,
            hovertemplate="%{text}<extra></extra>",
            colorscale=SCALES[role],
            zmin=0,
            zmax=1,
            colorbar={"len": 0.9, "x": (i + 1) / 3 - 0.055 + 0.025 * i, "thickness": 10},
            row=1,
            col=i + 1,
        )
    tick = 1 if heads <= 12 else 2 if heads <= 20 else 4
    figure.update_xaxes(title_text="head", dtick=tick)
    figure.update_yaxes(autorange="reversed", dtick=1 if layers <= 16 else 2, showgrid=False)
    figure.update_yaxes(title_text="layer", col=1)
    styled(
        figure,
        height=max(330, 160 + 22 * layers),
        margin={"t": 70, "r": 60},
    )
    return figure


def draw_ablation(found: Ablation) -> "go.Figure":
    """The three ablation curves with their bands."""
    return draw_ablations([found])


def draw_gating(found: Gating) -> "go.Figure":
    """The ablation curves, a panel per task and model."""
    return draw_ablations([part.ablation for part in found.tasks])


def draw_ablations(cells: Sequence[Ablation]) -> "go.Figure":
    """delta(k) of the three orders: a row per task, a column per model; rows share a y axis."""
    from plotly.subplots import make_subplots

    tasks = list(dict.fromkeys(cell.task for cell in cells))
    models = list(dict.fromkeys(cell.model for cell in cells))
    places = [(row, column) for row in range(len(tasks)) for column in range(len(models))]
    by_place = {(tasks.index(c.task), models.index(c.model)): c for c in cells}
    titles = [
        f"<b>{escaped(tasks[row])}</b>, {escaped(models[column])}"
        f"<br><sup>{escaped(by_place[row, column].note)}, "
        f"{by_place[row, column].prompts} held-out prompts</sup>"
        if (row, column) in by_place
        else ""
        for row, column in places
    ]
    figure = make_subplots(
        len(tasks),
        len(models),
        subplot_titles=titles,
        shared_yaxes=True,
        horizontal_spacing=0.06,
        vertical_spacing=0.3 / len(tasks),
    )
    for (row, column), cell in by_place.items():
        place: Any = {"row": row + 1, "col": column + 1}
        for role in cell.orders:
            color, dash = LINES[role]
            if cell.values.shape[1] > 1:
                low, high = (end.tolist() for end in cell.band(role))
                band(figure, cell.ks, low, high, color, **place)
            figure.add_scatter(
                x=cell.ks,
                y=cell.mean(role).tolist(),
                name=f"by {role}",
                legendgroup=role,
                showlegend=(row, column) == next(iter(by_place)),
                line={"color": color, "dash": dash, "width": 2.5},
                hovertemplate=f"{role}, k = %{{x}}: %{{y:.2f}} nats<extra></extra>",
                **place,
            )
        # Plotly adds no line to an empty panel, so this comes last.
        figure.add_hline(y=0, line={"color": "#999999", "width": 1}, layer="below", **place)
    figure.update_xaxes(title_text="heads closed instead of open (k)", row=len(tasks))
    figure.update_yaxes(title_text="Δ log P(target), nats", col=1)
    styled(
        figure,
        height=110 + 300 * len(tasks),
        margin={"t": 60, "r": 20},
        legend={"orientation": "h", "y": -0.12 - 0.12 / len(tasks)},
    )
    return figure


def draw_contrast(found: Contrast) -> "go.Figure":
    """Accuracy on retained and forgotten prompts before and after; mean and range over seeds."""
    import plotly.graph_objects as go

    figure = go.Figure()
    frame: Any = found.summary()
    styles = {"before": ("#999999", ""), "after": (COLORS[0], "/")}
    for state, (color, pattern) in styles.items():
        part = frame[frame["state"] == state]
        figure.add_bar(
            x=[part["task"].map(escaped).tolist(), part["side"].tolist()],
            y=part["accuracy"],
            error_y={
                "type": "data",
                "symmetric": False,
                "array": part["high"] - part["accuracy"],
                "arrayminus": part["accuracy"] - part["low"],
            },
            name=state,
            marker={"color": color, "pattern": {"shape": pattern}},
            hovertemplate="%{x}: %{y:.1%}<extra></extra>",
        )
    figure.update_yaxes(title_text="accuracy, held-out prompts", tickformat=".0%", range=[0, 1.05])
    styled(
        figure,
        barmode="group",
        height=420,
        margin={"t": 20, "r": 20},
        legend={"orientation": "h", "y": -0.25},
    )
    return figure
