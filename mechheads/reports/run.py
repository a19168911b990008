"""The two reports of a run folder: the results, then how they were made."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mechheads.runs.folder import Record, sign
from mechheads.runs.result import Result

from .page import Section, write_markdown, write_page

REPORT = "report.html"


def write_reports(
    folder: Path,
    title: str,
    sections: Sequence[Section],
    found: Result,
    record: Record | None = None,
) -> Path:
    """report.html and report.md; a record adds the settings, the provenance and the command."""
    about = []
    if record is not None:
        about = [
            Section(
                "Settings",
                table={
                    name: "(not used)" if name in found.unused else _shown(value)
                    for name, value in record.settings.items()
                },
            ),
            Section(
                "Provenance", table={**_flat(record.provenance), "signature": sign(folder, record)}
            ),
            Section("Run it again", code=[record.line]),
        ]
    words = {"headline": found.sentence, "warning": " ".join(found.warnings)}
    write_markdown(folder / "report.md", title, [*sections, *about], **words)
    return write_page(folder / REPORT, title, [*sections, *about], **words)


def _shown(value: Any) -> object:
    return "(default)" if value is None else value


def _flat(values: Mapping[str, Any]) -> dict[str, object]:
    flat: dict[str, object] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= {f"{key}: {inner}": v for inner, v in value.items()}
        else:
            flat[key] = "" if value is None else value
    return flat
