"""Self-contained HTML pages: figures, tables and text in one file that needs no network."""

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from .outputs import write_text

if TYPE_CHECKING:
    import plotly.graph_objects as go

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; margin: 2rem auto; max-width: 72rem;
  padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2rem; }
table { border-collapse: collapse; } td, th { padding: .15rem 1rem .15rem 0; text-align: left; }
th { font-weight: 600; } p.note { color: #555; max-width: 48rem; }
"""


@dataclass(frozen=True)
class Section:
    """A heading with text, a figure or a table below it; each of them may be missing."""

    heading: str
    text: str = ""
    figure: "go.Figure | None" = None
    table: Mapping[str, object] = field(default_factory=dict)


def write_page(file: Path, title: str, sections: Sequence[Section]) -> Path:
    """Write the page whole or not at all. Every text is escaped; plotly is inside, once."""
    body, script = [], True
    for section in sections:
        body.append(f"<h2>{html.escape(section.heading)}</h2>")
        if section.text:
            body.append(f'<p class="note">{html.escape(section.text)}</p>')
        if section.figure is not None:
            body.append(
                section.figure.to_html(
                    full_html=False,
                    include_plotlyjs="inline" if script else False,
                    config={"displaylogo": False, "responsive": True},
                )
            )
            script = False
        if section.table:
            rows = "".join(
                f"<tr><th>{html.escape(str(k))}</th><td>{html.escape(str(v))}</td></tr>"
                for k, v in section.table.items()
            )
            body.append(f"<table>{rows}</table>")
    return write_text(
        file,
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head>\n"
        f"<body><h1>{html.escape(title)}</h1>\n{chr(10).join(body)}\n</body></html>\n",
    )
