"""The curves of a training run: `training/log.csv` becomes `training/report.html`."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from mechheads.reports.page import Section, write_page
from mechheads.reports.theme import COLORS, DASHES, styled
from mechheads.runs.folder import read_table

if TYPE_CHECKING:
    import plotly.graph_objects as go


@dataclass(frozen=True)
class Panel:
    """One plot of a log: its columns, axis label, and a limit to draw."""

    title: str
    axis: str
    columns: Mapping[str, str]
    log: bool = False
    percent: bool = False
    limit: str = ""


SPARSE_PANELS = (
    Panel(
        "Loss above the dense model",
        "nats per weighted token",
        {"train_gap": "training, random gates", "test_gap": "held out, deterministic gates"},
        limit="slack",
    ),
    Panel(
        "Attention edges left",
        "% of causal edges",
        {"train_density": "training, expected", "test_density": "held out, deterministic gates"},
        log=True,
        percent=True,
        limit="density",
    ),
    Panel("Multiplier of the density constraint", "c", {"multiplier": "c"}, log=True),
    Panel("Heads with an open edge", "heads", {"live_heads": "held out"}),
)


def write_curves(
    training: Path,
    title: str,
    settings: Mapping[str, object],
    panels: Sequence[Panel] = SPARSE_PANELS,
) -> Path:
    """Write the report of a run from the log in its training folder."""
    log = read_table(training / "log.csv").drop_duplicates("step", keep="last")
    last = last_row(training / "log.csv")
    sections = [
        Section("Curves", figure=draw(log, panels, settings)),
        Section("Final values", table=last),
        Section("Settings", table=settings),
    ]
    return write_page(training / "report.html", title, sections)


def last_row(log: Path) -> dict[str, Any]:
    """The last row of a log: numbers at the last step."""
    return read_table(log).iloc[-1].to_dict()


def accuracy_panels(log: Path) -> tuple[Panel, ...]:
    """The panels of a pretraining log: its loss, and one line per task."""
    tasks = list(read_table(log).columns)[3:]
    half = math.ceil(len(tasks) / 2)
    return (
        Panel("Training loss", "nats per weighted token", {"loss": "loss"}),
        *(
            Panel(
                "Held-out accuracy" + (", other tasks" if part else ""),
                "% of prompts",
                {task: task for task in tasks[part * half : (part + 1) * half]},
                percent=True,
            )
            for part in (0, 1)
        ),
    )


def draw(log: pd.DataFrame, panels: Sequence[Panel], settings: Mapping[str, object]) -> "go.Figure":
    """The panels stacked vertically, each with its legend on the right."""
    from plotly.subplots import make_subplots

    rows = len(panels)
    figure = make_subplots(
        rows, 1, subplot_titles=[p.title for p in panels], vertical_spacing=0.28 / rows
    )
    for i, panel in enumerate(panels):
        place: Any = {"row": i + 1, "col": 1}
        scale = 100 if panel.percent else 1
        lines = {name: log[column] * scale for column, name in panel.columns.items()}
        if panel.limit:
            value = float(str(settings[panel.limit])) * scale
            lines[f"{panel.limit} ({value:g})"] = pd.Series(value, index=log.index)
        legend = f"legend{i + 1}" if i else "legend"
        for j, (name, values) in enumerate(lines.items()):
            figure.add_scatter(
                x=log["step"],
                y=values,
                name=name,
                mode="lines+markers" if len(log) < 3 else "lines",
                line={"color": COLORS[j % len(COLORS)], "dash": DASHES[j % len(DASHES)]},
                legend=legend,
                **place,
            )
        figure.update_xaxes(title_text="step" if i == rows - 1 else None, **place)
        axis: Any = {"type": "log", "dtick": 1} if panel.log else {"rangemode": "tozero"}
        figure.update_yaxes(title_text=panel.axis, exponentformat="none", **axis, **place)
        axes: Any = figure.get_subplot(i + 1, 1)
        figure.update_layout({legend: {"x": 1.01, "y": axes.yaxis.domain[1], "yanchor": "top"}})
    styled(figure, height=100 + 260 * rows, margin={"t": 50, "r": 240})
    return figure
