"""What a run of gate leaves behind: tables, arrays, and a report."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mechheads.reports.page import Section
from mechheads.reports.run import write_reports
from mechheads.runs.folder import Record, write_table

from .cells import Cell
from .contrast import Contrast
from .figures import draw_ablations

if TYPE_CHECKING:
    import pandas as pd


def write_gating(folder: Path, cells: Sequence[Cell], record: Record) -> None:
    """gates.csv, ablation.csv, masks.csv, arrays and both reports.

    Tables of several tasks or models have these as their first columns.
    """
    write_table(folder, "gates.csv", _joined(cells, [c.gating.frame() for c in cells]))
    write_table(folder, "ablation.csv", _joined(cells, [c.ablation.frame() for c in cells]))
    write_table(folder, "masks.csv", _joined(cells, [c.masks for c in cells]))
    for i, cell in enumerate(cells):
        end = "" if len(cells) == 1 else f"_{i}"
        cell.gating.save(folder / f"gating{end}.safetensors")
        cell.ablation.save(folder / f"ablation{end}.safetensors")
    sections = [
        Section(
            "What shutting heads does",
            "The first k heads of each order are shut, or opened, in the mask G+; the curve is the "
            "difference that this makes to the log probability of the target, summed over its "
            "tokens, on prompts that the gates were not fitted to. Mean over seeds, the band holds "
            "95 % of them. Facilitating heads should bring it down, irrelevant ones leave it at 0, "
            "interfering ones lift it until they run out.",
            draw_ablations([cell.ablation for cell in cells]),
        )
    ]
    for cell in cells:
        sections += _sections(cell)
    warnings = [f"{cell.name}: {words}" for cell in cells for words in cell.headline["warnings"]]
    title = "Which heads facilitate, which interfere, which do not matter?"
    sentence = " ".join(cell.sentence for cell in cells)
    write_reports(folder, title, sections, record, sentence, " ".join(warnings))


def write_contrast(folder: Path, found: Contrast, record: Record) -> None:
    """contrast.csv, gates.csv, arrays and both reports."""
    write_table(folder, "contrast.csv", found.frame())
    write_table(folder, "gates.csv", found.gate_frame())
    found.save(folder / "contrast.safetensors")
    sections = [
        Section(
            "Accuracy before and after",
            "Share of held-out prompts whose answer the model says, out of all tokens, without "
            "gates and with those that were fitted to retain one side and forget the other. Bars "
            "are means over seeds, whiskers go from the lowest to the highest.",
            found.plot(),
            frame=found.summary(),
        )
    ]
    title = f"{found.model}: can one kind of prompt be kept and the other forgotten?"
    write_reports(folder, title, sections, record, found.sentence, " ".join(found.warnings))


def _sections(cell: Cell) -> list[Section]:
    found = cell.gating
    about: Mapping[str, Any] = cell.agreement.table if cell.agreement else {}
    return [
        Section(
            f"Scores of every head: {cell.name}",
            "Facilitation is the gate that stays open when all are pulled shut, interference what "
            "stays shut when all are pulled open, irrelevance what goes either way. Mean over "
            f"{len(found.plus)} seeds. Point at a cell for its range.",
            found.plot(),
        ),
        Section(
            f"Roles: {cell.name}",
            "Heads that have a role (score of 0.5 or more) with every seed, and with at least one.",
            table=about,
            frame=found.role_frame(),
        ),
        Section(
            f"What the masks keep: {cell.name}",
            f"On {cell.ablation.prompts} held-out prompts; a gate of 0 takes a head's z away.",
            frame=cell.masks,
        ),
    ]


def _joined(cells: Sequence[Cell], frames: "Sequence[pd.DataFrame]") -> "pd.DataFrame":
    import pandas as pd

    if len(cells) == 1:
        return frames[0]
    parts = []
    for cell, frame in zip(cells, frames, strict=True):
        part = frame.copy()
        part.insert(0, "task", cell.gating.task)
        part.insert(1, "model", cell.gating.model)
        parts.append(part)
    return pd.concat(parts, ignore_index=True)
