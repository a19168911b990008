"""What a run of `gate` leaves behind: tables, arrays, circuits and a report."""

from pathlib import Path

from mechheads.reports.page import Section
from mechheads.reports.run import write_reports
from mechheads.runs.folder import Record, write_table

from .circuits import contrast_circuits, gated_circuits, save_circuits
from .contrast import Contrast
from .experiment import GatedTask, Gating


def write_gating(folder: Path, found: Gating, record: Record | None = None) -> Path:
    """gates.csv, ablation.csv, masks.csv, circuits, arrays and both reports.

    Tables of several tasks or models have these as their first columns.
    """
    write_table(folder, "gates.csv", found.frame())
    curves = found.joined([part.ablation.frame() for part in found.tasks])
    write_table(folder, "ablation.csv", curves)
    write_table(folder, "masks.csv", found.joined([part.masks.frame() for part in found.tasks]))
    save_circuits(folder, [gated_circuits(part.gates) for part in found.tasks])
    found.save(folder)
    sections = [
        Section(
            "What shutting heads does",
            "The first k heads of each order are shut, or opened, in the mask G+; the curve is the "
            "difference that this makes to the log probability of the target, summed over its "
            "tokens, on prompts that the gates were not fitted to. Mean over seeds, the band holds "
            "95 % of them. Facilitating heads should bring it down, irrelevant ones leave it at 0, "
            "interfering ones lift it until they run out.",
            found.plot(),
        )
    ]
    for part in found.tasks:
        sections += _sections(part)
    title = "Which heads facilitate, which interfere, which do not matter?"
    return write_reports(folder, title, sections, found, record)


def write_contrast(folder: Path, found: Contrast, record: Record | None = None) -> Path:
    """contrast.csv, gates.csv, circuits, arrays and both reports."""
    write_table(folder, "contrast.csv", found.frame())
    write_table(folder, "gates.csv", found.gate_frame())
    save_circuits(folder, [contrast_circuits(trial, found.model) for trial in found.trials])
    found.save(folder)
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
    return write_reports(folder, title, sections, found, record)


def _sections(part: GatedTask) -> list[Section]:
    found = part.gates
    about = part.agreement.table if part.agreement else {}
    return [
        Section(
            f"Scores of every head: {part.name}",
            "Facilitation is the gate that stays open when all are pulled shut, interference what "
            "stays shut when all are pulled open, irrelevance what goes either way. Mean over "
            f"{len(found.plus)} seeds. Point at a cell for its range.",
            found.plot(),
        ),
        Section(
            f"Roles: {part.name}",
            "Heads that have a role (score of 0.5 or more) with every seed, and with at least one.",
            table=about,
            frame=found.role_frame(),
        ),
        Section(
            f"What the masks keep: {part.name}",
            f"On {part.ablation.prompts} held-out prompts; a gate of 0 takes a head's z away.",
            frame=part.masks.frame(),
        ),
    ]
