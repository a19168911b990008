"""Reports of text, figures and tables: a self-contained HTML file, or Markdown without figures."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader

from mechheads.runs.files import write_text

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

PAGE = "page.html.j2"


@dataclass(frozen=True)
class Section:
    """A heading, followed by optional text, figure, tables and code.

    `links` maps the text of frame cells to the addresses they link to.
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
    """Write the page atomically. All text is escaped; plotly.js is embedded once."""
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
    loader = PackageLoader("mechheads.reports", "")
    template = Environment(autoescape=True, trim_blocks=True, loader=loader).get_template(PAGE)
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
    """The same as Markdown, to paste into notes: text, tables and code, no figures."""
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
            # A fence must be longer than any inside it.
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
    """The class of each column: numbers are right-aligned."""
    return ["number" if dtype.kind in "iuf" else "" for dtype in frame.dtypes]


def _row(cells: Sequence[Any]) -> str:
    return f"| {' | '.join(map(_escaped, cells))} |"


def _escaped(value: Any) -> str:
    text = str(value).replace("&", "&amp;").replace("<", "&lt;").replace("\n", " ")
    # No prompt or name becomes a link, an image, code or a heading.
    return re.sub(r"([\\`*_\[\]|#!])", r"\\\1", text)
