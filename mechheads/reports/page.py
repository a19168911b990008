"""Reports: sections of text, figures and tables, as one HTML file that needs no network, or as
Markdown, which leaves the figures out.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment

from mechheads.runs.files import write_text

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{{ title }}</title><style>
body { font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; margin: 2rem auto; max-width: 72rem;
  padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2rem; }
table { border-collapse: collapse; } td, th { padding: .15rem 1rem .15rem 0; text-align: left;
  vertical-align: top; }
th { font-weight: 600; } td.number, th.number { text-align: right;
  font-variant-numeric: tabular-nums; }
p.note { color: #555; max-width: 48rem; } p.warning { background: #fff3cd; padding: .5rem 1rem;
  border-left: 4px solid #E69F00; } p.headline { font-size: 1.15rem; max-width: 56rem; }
pre { background: #f5f5f5; padding: .75rem 1rem; white-space: pre-wrap; overflow-wrap: anywhere; }
mark { background: #ffe08a; } td { overflow-wrap: break-word; max-width: 30rem; }
td a { display: inline-block; min-width: 14rem; } .wide { overflow-x: auto; }
@media print { body { margin: 0; max-width: none; } h2 { break-after: avoid; }
  .figure, pre, tr { break-inside: avoid; } }
</style></head>
<body><h1>{{ title }}</h1>
{% if headline %}<p class="headline">{{ headline }}</p>{% endif %}
{% if warning %}<p class="warning">{{ warning }}</p>{% endif %}
{% for section in sections %}<h2>{{ section.heading }}</h2>
{% if section.text %}<p class="note">{{ section.text }}</p>{% endif %}
{% set figure = figures[loop.index0] %}
{% if figure %}<div class="figure">{{ figure|safe }}</div>{% endif %}
{% if section.table %}<table>{% for key, value in section.table.items() %}
<tr><th>{{ key }}</th><td>{{ value }}</td></tr>{% endfor %}</table>{% endif %}
{% if section.frame is not none %}{% set sides = kinds(section.frame) %}
<div class="wide"><table><tr>
{% for name in section.frame.columns %}<th class="{{ sides[loop.index0] }}">{{ name }}</th>
{% endfor %}</tr>
{% for row in cells(section.frame) %}<tr>{% for cell in row %}
<td class="{{ sides[loop.index0] }}">{% if cell in section.links %}
<a href="{{ section.links[cell] }}">{{ cell }}</a>{% else %}{{ cell }}{% endif %}</td>
{% endfor %}</tr>
{% endfor %}</table></div>{% endif %}
{% for code in section.code %}<pre>{{ code }}</pre>{% endfor %}
{% endfor %}</body></html>
"""


@dataclass(frozen=True)
class Section:
    """A heading with text, a figure, tables or lines of code below it; each may be missing.

    `links` are the addresses that cells of the frame point to, by their text.
    """

    heading: str
    text: str = ""
    figure: "go.Figure | None" = None
    table: Mapping[str, object] = field(default_factory=dict)
    frame: "pd.DataFrame | None" = None
    code: Sequence[str] = ()
    links: Mapping[str, str] = field(default_factory=dict)


def write_page(
    file: Path, title: str, sections: Sequence[Section], *, headline: str = "", warning: str = ""
) -> Path:
    """Write the page whole or not at all. Every text is escaped; plotly is inside, once."""
    figures, script = [], True
    for i, section in enumerate(sections):
        drawn = ""
        if section.figure is not None:
            drawn = section.figure.to_html(
                full_html=False,
                include_plotlyjs="inline" if script else False,
                config={"displaylogo": False, "responsive": True},
                div_id=f"figure-{i}",
            )
            script = False
        figures.append(drawn)
    template = Environment(autoescape=True, trim_blocks=True).from_string(PAGE)
    return write_text(
        file,
        template.render(
            title=title,
            headline=headline,
            warning=warning,
            sections=sections,
            figures=figures,
            cells=_cells,
            kinds=_kinds,
        ),
    )


def write_markdown(
    file: Path, title: str, sections: Sequence[Section], *, headline: str = "", warning: str = ""
) -> Path:
    """The same for people who paste into notes: text, tables and code, no figures."""
    lines = [f"# {_escaped(title)}", "", _escaped(headline), ""]
    lines += [f"**{_escaped(warning)}**"] if warning else []
    for section in sections:
        has_more = section.table or section.code or section.frame is not None
        if not has_more and not section.text:
            continue
        lines += ["", f"## {_escaped(section.heading)}", "", _escaped(section.text), ""]
        if section.table:
            lines += ["| | |", "|---|---|"]
            lines += [f"| {_escaped(k)} | {_escaped(v)} |" for k, v in section.table.items()]
        if section.frame is not None:
            sides = ["---:" if kind else "---" for kind in _kinds(section.frame)]
            lines += [_row(list(section.frame.columns)), f"|{'|'.join(sides)}|"]
            lines += [_row(cells) for cells in _cells(section.frame)]
        for code in section.code:
            # A fence must be longer than any inside of it.
            fence = max(["``", *re.findall("`+", code)], key=len) + "`"
            lines += ["", fence, code, fence]
    text = "\n".join(lines)
    while "\n\n\n" in text:
        text = text.replace("\n\n\n", "\n\n")
    return write_text(file, text.strip() + "\n")


def _cells(frame: "pd.DataFrame") -> list[list[str]]:
    return [[_cell(value) for value in row] for row in frame.itertuples(index=False)]


def _cell(value: Any) -> str:
    if value is None or value != value:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)


def _kinds(frame: "pd.DataFrame") -> list[str]:
    """Numbers stand at the right of their column."""
    return ["number" if dtype.kind in "iuf" else "" for dtype in frame.dtypes]


def _row(cells: Sequence[Any]) -> str:
    return f"| {' | '.join(map(_escaped, cells))} |"


def _escaped(value: Any) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")
