"""What a run of mask leaves behind: tables, what the model said, and a report."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from ..heads import name_of
from ..outputs import write_text
from ..pages import Section
from ..reports import write_reports
from ..runs import Record, write_table
from .experiment import Masking, Panel
from .matrix import Matrix
from .probe import Probing

if TYPE_CHECKING:
    import pandas as pd


def write_masking(
    folder: Path,
    found: Masking,
    matrix: Matrix | None,
    hierarchy: Matrix | None,
    probing: Probing | None,
    record: Record,
    sentence: str,
    warning: str,
) -> None:
    """masking.csv, generations.jsonl, matrix.csv, probe.csv, arrays and both reports."""
    write_table(folder, "masking.csv", found.frame())
    write_table(folder, "ranking.csv", ranking_frame(found))
    lines = [json.dumps(r, ensure_ascii=False) for p in found.panels for r in p.records()]
    write_text(folder / "generations.jsonl", "\n".join(lines) + "\n")
    found.save(folder / "masking.safetensors")
    sections = [
        Section(
            "Answers without heads",
            f"Each panel is a function. {found.method} ranks the heads; the first k (solid) or k "
            "others at random (dashed, the band goes from the worst draw to the best) are masked "
            f"at {_where(found.positions)} while the model answers. The point at the left is the "
            "model with all its heads.",
            found.plot(),
            frame=found.summary(),
        )
    ]
    if probing is not None:
        sections.append(
            Section(
                "The probe",
                "A classifier that tells the function from the heads' z; questions that it was not "
                "trained on.",
                table={
                    "Accuracy": f"{probing.accuracy:.1%}",
                    "Always the commonest function": f"{probing.chance:.1%}",
                    **{
                        f"Heads before the elbow, {name}": str(n)
                        for name, n in probing.elbows.items()
                    },
                },
            )
        )
    if matrix is not None:
        write_table(folder, "matrix.csv", matrix.frame())
        matrix.save(folder / "matrix.safetensors")
        sections.append(
            Section(
                "Whose heads does a function need?",
                "In a cell: the metric with the row's heads masked, below it with as many random "
                "ones. Red: the row's heads matter more than random ones.",
                matrix.plot(),
            )
        )
    if hierarchy is not None:
        sections.append(
            Section(
                "Do low-order functions feed high-order ones?",
                "The same, for the heads of low-order functions alone and high-order functions "
                "tested.",
                hierarchy.plot(),
            )
        )
    sections += [
        Section(f"Broken answers: {panel.function}", frame=broken(panel)) for panel in found.panels
    ]
    title = f"{found.model}: what does it say without its {found.method} heads?"
    write_reports(folder, title, sections, record, sentence, warning)


def broken(panel: Panel, n: int = 5) -> "pd.DataFrame":
    """Answers that were right with all heads and are not without the top ones."""
    import pandas as pd

    rows = []
    last = max(i for i, c in enumerate(panel.conditions) if c.selection == "top")
    k = panel.conditions[last].k
    for j, gold in enumerate(panel.gold):
        if panel.values[0, 0, j] > panel.values[last, 0, j] and len(rows) < n:
            question = panel.prompts[j].rstrip().splitlines()
            asked = " / ".join(line for line in question[-2:] if line.strip())
            rows.append((asked, gold[0], panel.said[0][j].strip(), panel.said[last][j].strip()))
    columns = ["question", "right", "all heads", f"without the first {k}"]
    return pd.DataFrame(rows, columns=pd.Index(columns))


def ranking_frame(found: Masking) -> "pd.DataFrame":
    """A tidy frame: function, rank (from 1), head."""
    import pandas as pd

    rows = [
        (panel.function, rank, name_of(*head))
        for panel in found.panels
        for rank, head in enumerate(panel.ranking, start=1)
    ]
    return pd.DataFrame(rows, columns=pd.Index(["function", "rank", "head"]))


def _where(positions: str) -> str:
    return "all positions" if positions == "all" else "the last position of every pass"
