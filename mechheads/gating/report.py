"""Files written by a `gate` run: tables, arrays, circuits and reports."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mechheads.heads import name_of
from mechheads.reports.page import Section
from mechheads.reports.run import write_reports
from mechheads.runs.folder import Record, write_table
from mechheads.scoring.gate_roles import HeadRoles

from .circuits import contrast_circuits, gated_circuits, save_circuits
from .contrast import Contrast
from .experiment import GatedTask, Gating

if TYPE_CHECKING:
    import pandas as pd

SHOWN = 25  # heads in a table of the report


def write_gating(folder: Path, found: Gating, record: Record | None = None) -> Path:
    """gates.csv, roles.csv, ablation.csv, masks.csv, circuits, arrays and both reports.

    With several tasks or models, the first columns of the tables name them.
    """
    write_table(folder, "gates.csv", found.frame())
    write_table(folder, "roles.csv", found.joined([part.roles.frame() for part in found.tasks]))
    curves = found.joined([part.ablation.frame() for part in found.tasks])
    write_table(folder, "ablation.csv", curves)
    write_table(folder, "masks.csv", found.joined([part.masks.frame() for part in found.tasks]))
    save_circuits(folder, [gated_circuits(part.gates) for part in found.tasks])
    found.save(folder)
    sections = [
        Section(
            "Effect of closing heads",
            "The first k heads of each order are closed or opened in the mask G+; the curve is the "
            "resulting difference in the log probability of the target, summed over its tokens, on "
            "prompts that the gates were not fitted to. Lines are means over seeds, bands hold "
            "95% of the seeds. Facilitating heads should lower the curve, irrelevant ones leave "
            "it at 0, and interfering ones raise it until they run out.",
            found.plot(),
        )
    ]
    for part in found.tasks:
        sections += _sections(part)
    title = "Which heads facilitate, which interfere, and which do not matter?"
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
            "Share of held-out prompts answered correctly (top-1 over all tokens), without gates "
            "and with gates fitted to retain one side and forget the other. Bars are means over "
            "seeds, whiskers span the lowest to the highest seed.",
            found.plot(),
            frame=found.summary(),
        )
    ]
    title = f"{found.model}: can one kind of prompt be retained and the other forgotten?"
    return write_reports(folder, title, sections, found, record)


def _strongest(roles: HeadRoles) -> "pd.DataFrame":
    """The heads with the largest gains, either way."""
    frame: Any = roles.frame()
    order = frame["gain"].abs().sort_values(ascending=False, kind="stable").index[:SHOWN]
    frame = frame.loc[order].reset_index(drop=True)
    heads = zip(frame.pop("layer"), frame.pop("head"), strict=True)
    frame.insert(0, "name", [name_of(*head) for head in heads])
    return frame.rename(
        columns={
            "seeds_agree": "seeds agree",
            "gain_low": "gain, 95% low",
            "gain_high": "gain, 95% high",
        }
    )


def _sections(part: GatedTask) -> list[Section]:
    found = part.gates
    about = part.agreement.table if part.agreement else {}
    return [
        Section(
            f"Scores of every head: {part.name}",
            "Facilitation: how far a gate stays open when all are pulled closed. Interference: how "
            "far it stays closed when all are pulled open. Irrelevance: how far it follows either "
            f"pull. Mean over {len(found.plus)} seeds. Hover over a cell for its range.",
            found.plot(),
        ),
        Section(
            f"Roles: {part.name}",
            "Heads that have a role (score of 0.5 or more) in every seed, and in at least one.",
            table=about,
            frame=found.role_frame(),
        ),
        Section(
            f"Do seeds and prompts agree? {part.name}",
            "Seeds agree: the share of seeds that give the head this role. Gain: log probability "
            "of the target (nats) with the head's gate open less that with it closed, all other "
            f"gates at their mean G+, with its 95% interval over {part.ablation.prompts} held-out "
            "prompts. A facilitating head should have a gain above 0 and an interfering one below; "
            "0 within the interval means that these prompts do not show it alone to matter. The "
            f"{SHOWN} heads with the largest gains; all are in roles.csv.",
            frame=_strongest(part.roles),
        ),
        Section(
            f"What the masks keep: {part.name}",
            f"On {part.ablation.prompts} held-out prompts; a gate of 0 zero-ablates a head.",
            frame=part.masks.frame(),
        ),
    ]
