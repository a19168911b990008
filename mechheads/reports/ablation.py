"""The figure of a set of heads replaced together."""

from typing import TYPE_CHECKING

from mechheads.metrics import label_of
from mechheads.scoring.ablation import Ablated

from .theme import COLORS, escaped, styled

if TYPE_CHECKING:
    import plotly.graph_objects as go


def draw_ablated(found: Ablated) -> "go.Figure":
    """A dot per prompt: the metric before and after; below the diagonal it fell."""
    import plotly.graph_objects as go

    label = label_of(found.metric)
    before, after = found.before.tolist(), found.after.tolist()
    ends = [min(before + after), max(before + after)]
    figure = go.Figure(
        [
            go.Scatter(
                x=ends, y=ends, mode="lines", line={"color": "#999999", "dash": "dash"},
                name="no change", hoverinfo="skip",
            ),
            go.Scatter(
                x=before, y=after, mode="markers", marker={"color": COLORS[0], "size": 8},
                name="a prompt", hovertemplate="before %{x:.3f}<br>after %{y:.3f}<extra></extra>",
            ),
        ]
    )  # fmt: skip
    names = ", ".join(found.headline["heads"][:6]) + (" ..." if len(found.heads) > 6 else "")
    figure.update_xaxes(title_text=f"{label}, all heads")
    figure.update_yaxes(title_text=f"{label}, heads replaced")
    title = f"{escaped(found.task)} on {escaped(found.model)}: {names} replaced"
    return styled(
        figure,
        title={"text": f"{title} ({found.replacement})", "font": {"size": 14}},
        height=460,
        margin={"t": 50, "r": 20},
        legend={"orientation": "h", "y": -0.2},
    )
