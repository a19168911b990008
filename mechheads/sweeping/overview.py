"""The overview of a sweep: small multiples and a table of headline numbers with links, by verb."""

import html
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..outputs import write_text
from ..pages import Section, write_page
from .cells import CELLS, INDEX, SUMMARY, Sweep
from .grid import TASKS, Cell, parameters

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

NUMBERS = 6  # columns of a table


@dataclass(frozen=True)
class Drawing:
    """What is drawn of a run: columns of one of its tables.

    A panel for each value of `panel` (where there is no such column, for each task of the cells),
    and in it a line for each value of `lines`, each of `y` and all settings that differ. Of the
    column `first` only the first value is drawn.
    """

    file: str
    x: str
    y: tuple[str, ...]
    panel: str = ""
    lines: tuple[str, ...] = ()
    first: str = ""


DRAWINGS: Mapping[str, Drawing] = {
    "discover": Drawing("curve.csv", "k", ("explained",)),
    "gate": Drawing("ablation.csv", "k", ("delta",), "task", ("model", "order")),
    "mask": Drawing("masking.csv", "k", ("value",), "function", ("selection",), "metric"),
    "prefix": Drawing("accuracy.csv", "condition", ("accuracy",), "", ("model",)),
    "compare": Drawing("comparison.csv", "task", ("n_standard", "n_sparse")),
}


@dataclass(frozen=True)
class Line:
    """A line of a panel."""

    panel: str
    name: str
    y: str
    points: "pd.Series"


def write_overview(sweep: Sweep, command: str) -> Path:
    """index.html and sweep.json: what every cell found, or why it failed."""
    rows = [_row(sweep, cell) for cell in sweep.cells]
    write_text(sweep.out / SUMMARY, json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    failed = [f"{row['cell']}: {row['error']}" for row in rows if row["state"] == "failed"]
    done = sum(row["state"] == "done" for row in rows)
    return write_page(
        sweep.out / INDEX,
        "Sweep",
        [
            *(_section(sweep, verb, rows) for verb in dict.fromkeys(c.verb for c in sweep.cells)),
            Section("Make it again", code=[command]),
        ],
        headline=f"{done} of {len(rows)} cells are done, {len(failed)} failed.",
        warning=" ".join(failed),
    )


def _row(sweep: Sweep, cell: Cell) -> dict[str, Any]:
    row: dict[str, Any] = {"verb": cell.verb, "cell": cell.label}
    if cell in sweep.errors:
        return row | {"state": "failed", "error": sweep.errors[cell]}
    if cell not in sweep.runs:
        return row | {"state": "not run"}
    run = sweep.runs[cell]
    report = f"{CELLS}/{cell.name}/{run.folder.name}/report.html"
    return row | {"state": "done", "report": report, "headline": dict(run.record.headline)}


def _section(sweep: Sweep, verb: str, rows: Sequence[Mapping[str, Any]]) -> Section:
    """The verb's figure and its table: a line per cell, or per part of a cell that has parts."""
    import pandas as pd

    own = [row for row in rows if row["verb"] == verb]
    table = []
    for row in own:
        headline = row.get("headline", {})
        in_parts = headline and all(isinstance(value, Mapping) for value in headline.values())
        for part, numbers in (headline if in_parts else {"": headline}).items():
            kept = dict(list(_numbers(numbers))[:NUMBERS])
            table.append(
                {"cell": row["cell"], "state": row["state"]} | ({"of": part} if part else {}) | kept
            )
    lines = list(_lines(sweep, verb))
    return Section(
        verb,
        figure=_draw(lines, DRAWINGS[verb].x) if lines else None,
        frame=pd.DataFrame(table),
        links={row["cell"]: row["report"] for row in own if "report" in row},
    )


def _numbers(headline: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Every number, with the names that lead to it: `heads multiplier`."""
    for key, value in headline.items():
        name = f"{before} {key}".strip().replace("_", " ")
        if isinstance(value, Mapping):
            yield from _numbers(value, name)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield name, value


def _lines(sweep: Sweep, verb: str) -> Iterator[Line]:
    """All lines of the verb's cells, in their order."""
    import pandas as pd

    what = DRAWINGS.get(verb)
    if what is None:
        return
    found = [cell for cell in sweep.cells if cell.verb == verb and cell in sweep.runs]
    for cell in found:
        file = sweep.runs[cell].folder / what.file
        if not file.is_file():
            continue  # contrastive gating has no such curves
        frame: Any = pd.read_csv(file)
        if what.first:
            frame = frame[frame[what.first] == frame[what.first].iloc[0]]
        by = [name for name in (what.panel, *what.lines) if name in frame]
        shared = _differing(cell, found)
        for values, part in frame.groupby(by, sort=False) if by else [((), frame)]:
            named = dict(zip(by, map(str, values), strict=True))
            panel = named.pop(what.panel, None) or _task(cell)
            for y in what.y:
                words = [*shared, *named.values(), *([y] if len(what.y) > 1 else [])]
                points = part.groupby(what.x, sort=False)[y].mean()
                yield Line(panel, ", ".join(words) or verb, y, points)


def _task(cell: Cell) -> str:
    """As the cell has it or by default."""
    own = parameters(cell.verb)
    name = next(name for name in TASKS if name in own)
    return str(dict(cell.settings).get(name, own[name].default))


def _differing(cell: Cell, others: Sequence[Cell]) -> list[str]:
    """What the cell has of settings, tasks aside, that are not the same in all cells."""
    return [
        str(value) if isinstance(value, str) else f"{name} {value}"
        for name, value in cell.settings
        if name not in TASKS and any(dict(other.settings).get(name) != value for other in others)
    ]


def _draw(lines: Sequence[Line], x: str) -> "go.Figure":
    from plotly.subplots import make_subplots

    from ..figures import COLORS, DASHES, FONT, escaped

    panels = list(dict.fromkeys(line.panel for line in lines))
    names = list(dict.fromkeys(line.name for line in lines))
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure = make_subplots(
        rows,
        columns,
        subplot_titles=[f"<b>{escaped(panel)}</b>" for panel in panels],
        shared_yaxes=True,
        horizontal_spacing=0.05,
        vertical_spacing=0.25 / rows,
    )
    shown = set()
    for line in lines:
        i, which = panels.index(line.panel), names.index(line.name)
        figure.add_scatter(
            x=line.points.index.tolist(),
            y=line.points.tolist(),
            name=escaped(line.name),
            legendgroup=line.name,
            showlegend=line.name not in shown,
            mode="lines+markers" if len(line.points) < 12 else "lines",
            line={"color": COLORS[which % len(COLORS)], "dash": DASHES[which % len(DASHES)]},
            hovertemplate=html.escape(line.name) + ", %{x}: %{y:.3g}<extra></extra>",
            row=i // columns + 1,
            col=i % columns + 1,
        )
        shown.add(line.name)
    figure.update_xaxes(title_text=x, row=rows)
    measured = list(dict.fromkeys(line.y for line in lines))
    figure.update_yaxes(title_text=", ".join(measured), col=1)
    figure.update_layout(
        template="simple_white",
        font=FONT,
        height=160 + 260 * rows,
        margin={"t": 80, "r": 20},  # room for the tool bar above the titles
        legend={"orientation": "h", "y": -0.15 - 0.1 / rows},
    )
    return figure
