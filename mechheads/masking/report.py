"""What a run of mask leaves behind: tables, what the model said, and a report."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from mechheads.heads import name_of
from mechheads.prompts.partitions import Parts
from mechheads.reports.page import Section
from mechheads.reports.run import write_reports
from mechheads.runs.files import write_text
from mechheads.runs.folder import Record, write_table
from mechheads.scoring.statistics import wilson

from .experiment import Masking, Panel
from .matrix import Matrix, compare_orders
from .probe import Probing

if TYPE_CHECKING:
    import pandas as pd


def write_masking(
    folder: Path,
    found: Masking,
    parts: Parts,
    matrix: Matrix | None,
    orders: tuple[Matrix, Matrix] | None,
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
            "model with all its heads. Bars and the column more (what top heads cost more than "
            "random ones) have 95 % intervals over questions, for these draws. overlap is the "
            "share of their heads that two random draws have in common: where it is large, the "
            "band says little of other draws.",
            found.plot(),
            frame=found.summary(),
        ),
        Section("Questions", table=question_table(parts)),
    ]
    if probing is not None:
        write_table(folder, "probe.csv", probing.frame())
        sections.append(
            Section(
                "The probe",
                "A classifier that tells the function from the heads' z, judged on questions about "
                "other things than those it was trained on. probe.csv has every head's importance.",
                table=probe_table(probing),
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
    if orders is not None:
        sections.append(
            Section(
                "Do low-order functions feed high-order ones?",
                compare_orders(*orders).sentence,
                orders[0].plot(),
            )
        )
    sections += [broken_section(panel) for panel in found.panels]
    title = f"{found.model}: what does it say without its {found.method} heads?"
    write_reports(folder, title, sections, record, sentence, warning)


def question_table(parts: Parts) -> dict[str, str]:
    """How many questions ranked and were answered, and which are missing."""
    table = {
        asked.name: f"{len(ranked)} rank the heads, {len(asked)} others are answered"
        for ranked, asked in zip(parts.ranked, parts.asked, strict=True)
    }
    table |= {name: f"left out: only {n} questions" for name, n in parts.left_out.items()}
    return table | {"Too long for the model": str(parts.too_long)}


def probe_table(probing: Probing) -> dict[str, str]:
    """How good the probe is, and how many heads matter."""
    low, high = wilson(probing.right, probing.n)
    return {
        "Accuracy": f"{probing.accuracy:.1%} of {probing.n} (95 % {low:.1%} to {high:.1%})",
        "Always the commonest function": f"{probing.chance:.1%}",
        **{f"Heads before the elbow, {name}": str(n) for name, n in probing.elbows.items()},
    }


def broken_section(panel: Panel) -> Section:
    """Answers that broke, or that none did."""
    frame, heading = broken(panel), f"Broken answers: {panel.function}"
    if len(frame):
        return Section(heading, frame=frame)
    right = int(panel.right()[0].sum())
    return Section(
        heading,
        f"None: of {len(panel.prompts)} answers {right} are right with all heads, and they are "
        f"right without the first {panel.sizes[-1]} too."
        if right
        else f"None: of {len(panel.prompts)} answers none is right even with all heads.",
    )


def broken(panel: Panel, n: int = 5) -> "pd.DataFrame":
    """Answers that are right (exact match) with all heads and wrong without the top ones."""
    import pandas as pd

    rows = []
    k = panel.sizes[-1]
    last = next(i for i, c in enumerate(panel.conditions) if (c.selection, c.k) == ("top", k))
    right = panel.right()
    for j in (right[0] > right[last]).nonzero()[:n, 0].tolist():
        question = panel.prompts[j].rstrip().splitlines()
        asked = " / ".join(line for line in question[-2:] if line.strip())
        said = panel.said[0][j].strip(), panel.said[last][j].strip()
        rows.append((asked, panel.gold[j][0], *said))
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
