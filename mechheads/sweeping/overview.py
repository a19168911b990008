"""The overview of a sweep: a table of headline numbers with links, and small multiples."""

import html
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..figures import COLORS, DASHES, FONT, escaped
from ..outputs import write_text
from ..pages import Section, write_page
from ..runs import read_run
from .cells import CELLS, errors, finished
from .grid import Cell

if TYPE_CHECKING:
    import plotly.graph_objects as go

INDEX = "index.html"


def write_overview(out: Path, cells: Sequence[Cell], command: str) -> Path:
    """index.html and sweep.json: what every cell found, or why it failed."""
    wrong = errors(out, cells)
    rows: list[dict[str, Any]] = []
    for cell in cells:
        folder = finished(out, cell)
        row: dict[str, Any] = {"verb": cell.verb, "cell": cell.label}
        if folder is None:
            row |= {"state": "failed" if cell.name in wrong else "not run"}
            row |= {"error": wrong.get(cell.name, "")}
        else:
            row |= {"state": "done", "report": f"{CELLS}/{cell.name}/{folder.name}/report.html"}
            row |= {"headline": dict(read_run(folder).headline)}
        rows.append(row)
    write_text(out / "sweep.json", json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    counts = {state: sum(r["state"] == state for r in rows) for state in ("done", "failed")}
    headline = f"{counts['done']} of {len(rows)} cells are done, {counts['failed']} failed."
    sections = [_table(verb, rows) for verb in dict.fromkeys(cell.verb for cell in cells)]
    curves = _curves(out, cells)
    if curves is not None:
        text = "Explained effect over the number of heads kept, a panel per task."
        sections.insert(0, Section("Curves", text, curves))
    sections.append(Section("Make it again", code=[command]))
    failed = [f"{r['cell']}: {r['error']}" for r in rows if r["state"] == "failed"]
    return write_page(out / INDEX, "Sweep", sections, headline=headline, warning=" ".join(failed))


def _table(verb: str, rows: Sequence[Mapping[str, Any]]) -> Section:
    import pandas as pd

    lines = []
    for row in (row for row in rows if row["verb"] == verb):
        numbers = _flat(row.get("headline", {}))
        lines.append({"cell": row["cell"], "state": row["state"]} | numbers)
    links = {row["cell"]: row["report"] for row in rows if row["verb"] == verb and "report" in row}
    return Section(verb, frame=pd.DataFrame(lines), links=links)


def _flat(headline: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of a headline, the first eight of them."""
    found = {
        key: value
        for key, value in headline.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    return dict(list(found.items())[:8])


def _curves(out: Path, cells: Sequence[Cell]) -> "go.Figure | None":
    """A panel per task with the curve of every discover cell."""
    import pandas as pd
    from plotly.subplots import make_subplots

    kept = [(cell, finished(out, cell)) for cell in cells if cell.verb == "discover"]
    found = [(dict(cell.settings), folder) for cell, folder in kept if folder is not None]
    if not found:
        return None
    tasks = list(dict.fromkeys(str(settings.get("task", "ioi")) for settings, _ in found))
    columns = min(3, len(tasks))
    rows = -(-len(tasks) // columns)
    figure = make_subplots(
        rows,
        columns,
        subplot_titles=[f"<b>{escaped(task)}</b>" for task in tasks],
        shared_yaxes=True,
        horizontal_spacing=0.05,
        vertical_spacing=0.25 / rows,
    )
    kinds = list(dict.fromkeys(_kind(settings) for settings, _ in found))
    shown = set()
    for settings, folder in found:
        frame = pd.read_csv(folder / "curve.csv")
        i, kind = tasks.index(str(settings.get("task", "ioi"))), _kind(settings)
        which = kinds.index(kind)
        figure.add_scatter(
            x=frame["k"],
            y=frame["explained"],
            name=escaped(kind),
            legendgroup=kind,
            showlegend=kind not in shown,
            mode="lines",
            line={"color": COLORS[which % len(COLORS)], "dash": DASHES[which % len(DASHES)]},
            hovertemplate=html.escape(kind) + ", k = %{x}: %{y:.1%}<extra></extra>",
            row=i // columns + 1,
            col=i % columns + 1,
        )
        shown.add(kind)
    figure.update_xaxes(title_text="heads kept", row=rows)
    figure.update_yaxes(title_text="explained", tickformat=".0%", col=1)
    figure.update_layout(
        template="simple_white",
        font=FONT,
        height=120 + 260 * rows,
        margin={"t": 40, "r": 20},
        legend={"orientation": "h", "y": -0.15 - 0.1 / rows},
    )
    return figure


def _kind(settings: Mapping[str, Any]) -> str:
    return f"{settings.get('model', 'mini')}, {settings.get('method', 'patch')}"
