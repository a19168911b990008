"""Draws recorded benchmarks: `python -m mechheads.benchmarks.figures FOLDER FILE.html`."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mechheads.reports.theme import COLORS, escaped, styled
from mechheads.runs.files import write_text

from .records import read
from .sizes import LEAST, exponent

if TYPE_CHECKING:
    import plotly.graph_objects as go

Rows = Sequence[Mapping[str, str]]
MEASUREMENTS: Mapping[str, str] = {
    "patch": "Patching every head",
    "attribution": "Attribution of every head",
    "discover": "The whole of discover",
    "gating": "Gates, ten seeds",
}
AXES: Mapping[str, str] = {
    "heads": "heads per layer",
    "prompts": "prompt pairs",
    "length": "tokens per prompt",
    "layers": "layers",
    "width": "width of the residual stream",
}


def draw_peers(rows: Rows) -> "go.Figure":
    """A panel per measurement and shape, a bar per side: seconds, and how many times ours.

    `rows` are those of a peers.csv: one release and machine, one number of threads.
    """
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    panels = list(dict.fromkeys((row["shape"], row["measurement"]) for row in rows))
    panels.sort(key=lambda panel: (panel[0] != "gpt2", list(MEASUREMENTS).index(panel[1])))
    peers = list(dict.fromkeys(row["peer"] for row in rows))
    titles = [f"{MEASUREMENTS[what]} ({escaped(shape)})" for shape, what in panels]
    figure = make_subplots(-(-len(panels) // 2), 2, subplot_titles=titles, horizontal_spacing=0.2)
    for i, panel in enumerate(panels):
        here = [row for row in rows if (row["shape"], row["measurement"]) == panel]
        seconds = [float(row["seconds"]) for row in here]
        bar = go.Bar(
            x=seconds,
            y=[escaped(f"{row['peer'].split()[0]} {row['version']}") for row in here],
            orientation="h",
            marker_color=[COLORS[peers.index(row["peer"]) % len(COLORS)] for row in here],
            text=[f"{_seconds(s)} ({_times(row)})" for s, row in zip(seconds, here, strict=True)],
            textposition="outside",
            cliponaxis=False,
            customdata=[[escaped(row["how"]), row["memory"], row["difference"]] for row in here],
            hovertemplate="%{y}<br>timed on: %{customdata[0]}<br>%{customdata[1]} MB"
            "<br>difference from ours: %{customdata[2]}<extra></extra>",
            showlegend=False,
        )
        place: dict[str, Any] = {"row": i // 2 + 1, "col": i % 2 + 1}
        figure.add_trace(bar, **place)
        figure.update_yaxes(autorange="reversed", **place)
        # Room at the right for the numbers beside the bars.
        figure.update_xaxes(range=[0, 1.35 * max(seconds)], title_text="seconds", **place)
    return styled(
        figure,
        title={"text": f"The same work, the same numbers: {_origin(rows)}", "font": {"size": 14}},
        height=90 + 210 * -(-len(panels) // 2),
        margin={"t": 90, "r": 30, "l": 150},
        bargap=0.35,
    )


def draw_sizes(rows: Rows) -> "go.Figure":
    """Seconds above and added memory below, as each of five numbers doubles; both logarithmic.

    `rows` are those of a size.csv: one release and machine, one number of threads.
    """
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    axes = list(dict.fromkeys(row["axis"] for row in rows))
    figure = make_subplots(2, len(axes), shared_yaxes=True, vertical_spacing=0.16)
    for i, axis in enumerate(axes, start=1):
        here = [row for row in rows if row["axis"] == axis]
        sizes = [float(row["size"]) for row in here]
        seconds = [float(row["seconds"]) for row in here]
        added = [max(LEAST, float(row["memory"]) - float(row["loaded"])) for row in here]
        for line, (values, unit) in enumerate(((seconds, "s"), (added, "MB")), start=1):
            trace = go.Scatter(
                x=sizes,
                y=values,
                mode="lines+markers",
                line={"color": COLORS[line - 1]},
                hovertemplate=f"%{{x}} {AXES[axis]}<br>%{{y:.3g}} {unit}<extra></extra>",
                showlegend=False,
            )
            figure.add_trace(trace, row=line, col=i)
            where: dict[str, Any] = {"row": line, "col": i}
            figure.update_yaxes(type="log", dtick=1, **where)
            figure.update_xaxes(type="log", tickvals=sizes, **where)
            figure.add_annotation(
                text=f"exponent {exponent(sizes, values):.2f}",
                x=0.02, y=1.1, xref="x domain", yref="y domain", showarrow=False, **where,
            )  # fmt: skip
        figure.update_xaxes(title_text=AXES[axis], row=2, col=i)
    figure.update_yaxes(title_text="seconds", row=1, col=1)
    figure.update_yaxes(title_text="MB beyond the model", row=2, col=1)
    title = f"Patching every head, one number doubled at a time: {_origin(rows)}"
    return styled(
        figure,
        title={"text": title, "font": {"size": 14}},
        height=560,
        margin={"t": 90, "r": 30},
    )


def chosen(rows: Rows, threads: str | None = None) -> Rows:
    """The rows of the newest date's release and machine, with so many threads (the fewest)."""
    newest = max(rows, key=lambda row: row["date"])
    same = [r for r in rows if all(r[k] == newest[k] for k in ("release", "machine"))]
    count = threads or min((row["threads"] for row in same), key=int)
    return [row for row in same if row["threads"] == count]


def _origin(rows: Rows) -> str:
    first = rows[0]
    threads = f"{first['threads']} thread{'s' if first['threads'] != '1' else ''}"
    return escaped(f"mechheads {first['release']}, {first['machine']}, {threads}")


def _seconds(value: float) -> str:
    return f"{value:.0f} s" if value >= 100 else f"{value:#.3g} s"


def _times(row: Mapping[str, str]) -> str:
    return "ours" if row["peer"] == "mechheads" else f"{float(row['ratio']):.1f} ×"


def main(folder: str, page: str) -> None:
    """A page of both figures of a folder of records."""
    drawn = [
        draw(chosen(rows))
        for name, draw in (("peers.csv", draw_peers), ("size.csv", draw_sizes))
        if (rows := read(Path(folder) / name))
    ]
    parts = [
        figure.to_html(full_html=False, include_plotlyjs="inline" if i == 0 else False)
        for i, figure in enumerate(drawn)
    ]
    write_text(Path(page), "<!doctype html><meta charset=utf-8>" + "".join(parts))


if __name__ == "__main__":
    main(*sys.argv[1:])
