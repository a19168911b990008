"""The overview of a sweep: small multiples and a table of headline numbers for each command."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mechheads.cli.commands import COMMANDS
from mechheads.reports.page import Section, write_page
from mechheads.runs.files import write_text
from mechheads.runs.folder import read_table

from .cells import CELLS, INDEX, SUMMARY, Sweep
from .grid import TASKS, Cell

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

PATTERNS = ("", "/", "x", ".", "-")  # of bars, for readers who cannot distinguish colours
WORDS = {"git": "code", "packages": "packages", "threads": "thread counts", "device": "devices"}


@dataclass(frozen=True)
class Drawing:
    """Which columns of a run's table are drawn, and which headline numbers are listed.

    There is a panel for each value of `panel` (or for each task, if there is no such column), with
    a line for each combination of `lines`, `y` and the settings that differ; bars if x is not a
    number. `y` may have wildcards. The last of `lines` sets the colour. Only rows with the first
    value in column `first` are drawn.
    """

    file: str
    x: str
    y: tuple[str, ...]
    titles: tuple[str, str]
    numbers: tuple[str, ...]
    panel: str = ""
    lines: tuple[str, ...] = ()
    first: str = ""


DRAWINGS: Mapping[str, Drawing] = {
    "discover": Drawing(
        "curve.csv",
        "k",
        ("explained",),
        ("heads (or edges) kept", "explained effect f(k)"),
        (
            "needed",
            "needed_low",
            "needed_high",
            "needed_random",
            "faithfulness",
            "explained_by_top",
            "explained_by_random",
            "cpr",
            "cmd",
            "area_under",
            "accuracy",
        ),
    ),
    "gate": Drawing(
        "ablation.csv",
        "k",
        ("delta",),
        ("heads ablated", "Δ log P(target), nats"),
        (
            "share_facilitation",
            "share_irrelevance",
            "share_interference",
            "nll_ungated",
            "nll_free",
            "rank_correlation",
        ),
        "task",
        ("model", "order"),
    ),
    "mask": Drawing(
        "masking.csv",
        "k",
        ("value",),
        ("heads masked", "first metric"),
        (
            "lost_without_top",
            "lost_without_given",
            "lost_without_random",
            "top_loses_more",
            "given_loses_more",
            "low",
            "high",
        ),
        "function",
        ("selection",),
        "metric",
    ),
    "prefix": Drawing(
        "accuracy.csv",
        "condition",
        ("accuracy",),
        ("condition", "accuracy"),
        ("accuracy", "p", "cut_off", "attention_on_the_run"),
        "",
        ("model",),
    ),
    "compare": Drawing(
        "comparison.csv",
        "task",
        ("n_*",),
        ("task", "heads (or edges) needed"),
        (
            "heads standard",
            "heads sparse",
            "heads multiplier",
            "heads low",
            "heads high",
            "edges multiplier",
            "circuit_edges multiplier",
        ),
    ),
}


@dataclass(frozen=True)
class Line:
    """A line of a panel, or a set of bars."""

    panel: str
    name: str
    color: str
    points: "pd.Series"


def write_overview(sweep: Sweep, line: str) -> Path:
    """index.html and sweep.json: what every cell found, or why it failed."""
    rows = [_row(sweep, cell) for cell in sweep.cells]
    write_text(sweep.out / SUMMARY, json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    states = [row["state"] for row in rows]
    return write_page(
        sweep.out / INDEX,
        "Sweep",
        [
            *(
                _section(sweep, command, rows)
                for command in dict.fromkeys(c.command for c in sweep.cells)
            ),
            Section("Run it again", code=[line]),
        ],
        headline=f"{states.count('done')} of {len(rows)} cells are done, "
        f"{states.count('failed')} failed.",
        warning=mixture(sweep),
    )


def mixture(sweep: Sweep) -> str:
    """A warning if the cells were not all run under the same conditions."""
    every = [part for run in sweep.runs.values() for part in run.record.origins]
    found = []
    for key in ("git", "packages", "threads", "device"):
        values = list(dict.fromkeys(json.dumps(part.get(key), sort_keys=True) for part in every))
        if len(values) > 1:
            listed = "" if key == "packages" else f" ({', '.join(values)})"
            found.append(f"{WORDS[key]}{listed}")
    if not found:
        return ""
    return f"Cells were run with different {' and '.join(found)}: last digits may differ."


def _row(sweep: Sweep, cell: Cell) -> dict[str, Any]:
    row: dict[str, Any] = {"command": cell.command, "cell": cell.label}
    if cell in sweep.errors:
        return row | {"state": "failed", "error": sweep.errors[cell]}
    if cell not in sweep.runs:
        return row | {"state": "not run"}
    run = sweep.runs[cell]
    report = f"{CELLS}/{cell.name}/{run.folder.name}/report.html"
    found = {"headline": dict(run.record.headline), "warnings": list(run.record.warnings)}
    return row | {"state": "done", "report": report} | found


def _section(sweep: Sweep, command: str, rows: Sequence[Mapping[str, Any]]) -> Section:
    """The command's figure and its table: a line per cell, or per part of a cell that has parts."""
    import pandas as pd

    cells = [cell for cell in sweep.cells if cell.command == command]
    own = [row for row in rows if row["command"] == command]
    table, links = [], {}
    for cell, row in zip(cells, own, strict=True):
        headline = row.get("headline", {})
        label = ", ".join(_differing(cell, cells, tasks=True)) or _task(cell)
        label = label if label not in links else row["cell"]
        if "report" in row:
            links[label] = row["report"]
        notes = _notes(row)
        for part, numbers in _parts(headline).items():
            line = {"cell": label} | ({"of": part} if part else {}) | _numbers(command, numbers)
            table.append(line | {"notes": notes})
            notes = ""  # they concern the whole cell: only its first line has them
    frame = pd.DataFrame(table)
    notes = frame.pop("notes")
    if any(notes):
        frame["notes"] = notes  # after the numbers of all cells
    lines = list(_lines(sweep, command))
    figure = _draw(lines, DRAWINGS[command].titles) if lines else None
    return Section(command, figure=figure, frame=frame, links=links)


def _numbers(command: str, headline: Mapping[str, Any]) -> dict[str, Any]:
    """The command's headline numbers by name; `heads multiplier` is inside `heads`."""
    found = {}
    for name in DRAWINGS[command].numbers:
        value: Any = headline
        for key in name.split(" "):
            value = value.get(key) if isinstance(value, Mapping) else None
        if isinstance(value, str | int | float):
            found[name.replace("_", " ")] = value
    return found


def _parts(headline: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The parts of a headline by name, or the whole as one without a name."""
    parts = headline.get("parts")
    named = parts if isinstance(parts, Mapping) else {}
    return {name: p for name, p in named.items() if isinstance(p, Mapping)} or {"": headline}


def _notes(row: Mapping[str, Any]) -> str:
    """Why a cell failed or was not run, and the warnings of its run."""
    said = [] if row["state"] == "done" else [row.get("error", row["state"])]
    return " ".join([*said, *row.get("warnings", ())])


def _lines(sweep: Sweep, command: str) -> Iterator[Line]:
    """All lines of the command's cells, in their order."""
    found = [cell for cell in sweep.cells if cell.command == command and cell in sweep.runs]
    for cell in found:
        file = sweep.runs[cell].folder / DRAWINGS[command].file
        if not file.is_file():
            continue  # contrastive gating has no such curves
        with suppress(ValueError, LookupError, TypeError):  # a damaged table is not drawn
            yield from list(_lines_of(cell, read_table(file), _differing(cell, found)))


def _lines_of(cell: Cell, frame: Any, shared: Sequence[str]) -> Iterator[Line]:
    """The lines of one cell's table."""
    what = DRAWINGS[cell.command]
    if what.first:
        frame = frame[frame[what.first] == frame[what.first].iloc[0]]
    by = [name for name in (what.panel, *what.lines) if name in frame]
    for values, part in frame.groupby(by, sort=False) if by else [((), frame)]:
        named = dict(zip(by, map(str, values), strict=True))
        panel = named.pop(what.panel, None) or _task(cell)
        drawn = [name for name in frame if any(fnmatchcase(name, y) for y in what.y)]
        for y in drawn:
            words = [*shared, *named.values(), *([y] if len(drawn) > 1 else [])]
            words = list(dict.fromkeys(words)) or [cell.command]
            points = part.groupby(what.x, sort=False)[y].mean()
            yield Line(panel, ", ".join(words), words[-1], points)


def _task(cell: Cell) -> str:
    """The cell's task or the default; for a command without tasks, the command's name."""
    whole = COMMANDS[cell.command].in_full(dict(cell.settings))
    return next((str(whole[name]) for name in TASKS if name in whole), cell.command)


def _differing(cell: Cell, others: Sequence[Cell], tasks: bool = False) -> list[str]:
    """The cell's values of the settings that differ between cells; tasks only if requested."""
    return [
        str(value) if isinstance(value, str) else f"{name} {value}"
        for name, value in cell.settings
        if (tasks or name not in TASKS)
        and any(dict(other.settings).get(name) != value for other in others)
    ]


def _draw(lines: Sequence[Line], titles: tuple[str, str]) -> "go.Figure":
    from plotly.subplots import make_subplots

    from mechheads.reports.theme import COLORS, DASHES, escaped, styled

    panels = list(dict.fromkeys(line.panel for line in lines))
    names = list(dict.fromkeys(line.name for line in lines))
    colors = list(dict.fromkeys(line.color for line in lines))
    styles = {line.name: line.color for line in lines}
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
        i = panels.index(line.panel)
        alike = [name for name in names if styles[name] == line.color]
        color, dash = colors.index(line.color), alike.index(line.name)
        common: dict[str, Any] = {
            "x": line.points.index.tolist(),
            "y": line.points.tolist(),
            "name": escaped(line.name),
            "legendgroup": line.name,
            "showlegend": line.name not in shown,
            "hovertemplate": escaped(line.name) + ", %{x}: %{y:.3g}<extra></extra>",
            "row": i // columns + 1,
            "col": i % columns + 1,
        }
        if line.points.index.dtype.kind in "iuf":
            figure.add_scatter(
                mode="lines+markers" if len(line.points) < 12 else "lines",
                line={"color": COLORS[color % len(COLORS)], "dash": DASHES[dash % len(DASHES)]},
                **common,
            )
        else:
            pattern = PATTERNS[(color + dash) % len(PATTERNS)]
            marker = {"color": COLORS[color % len(COLORS)], "pattern_shape": pattern}
            figure.add_bar(marker=marker, **common)
        shown.add(line.name)
    figure.update_xaxes(title_text=titles[0], row=rows)
    figure.update_yaxes(title_text=titles[1], col=1)
    styled(
        figure,
        height=160 + 260 * rows,
        margin={"t": 80, "r": 20},  # room for the tool bar above the titles
        legend={"orientation": "h", "y": -0.15 - 0.1 / rows},
    )
    return figure
