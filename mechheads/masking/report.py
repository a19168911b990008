"""Files written by a `mask` run: tables, answers and reports."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from mechheads.heads import listed, name_of
from mechheads.reports.page import Section
from mechheads.reports.run import write_reports
from mechheads.runs.files import write_text
from mechheads.runs.folder import Record, write_table
from mechheads.scoring.statistics import wilson

from .answers import FunctionAnswers
from .experiment import Masking
from .matrix import compare_orders
from .probe import Probing
from .selection import GIVEN

if TYPE_CHECKING:
    import pandas as pd


def write_masking(folder: Path, found: Masking, record: Record | None = None) -> Path:
    """masking.csv, ranking.csv, generations.jsonl, matrix.csv, probe.csv, arrays, both reports.

    There is no ranking if the heads were given.
    """
    write_table(folder, "masking.csv", found.frame())
    if not found.heads:
        write_table(folder, "ranking.csv", ranking_frame(found))
    lines = [json.dumps(r, ensure_ascii=False) for f in found.functions for r in f.records()]
    write_text(folder / "generations.jsonl", "\n".join(lines) + "\n")
    found.save(folder)
    probing, matrix = found.probing, found.matrix
    orders = matrix and matrix.orders()
    sections = [
        Section(
            "Answers without heads",
            f"One panel per function. {_masked(found)} (solid) or as many random others (dashed, "
            "the band spans the worst to the best draw) are masked at "
            f"{_where(found.positions)} while the model answers. The leftmost point is the "
            "unmasked model. Error bars, and more_low to more_high, are 95% intervals over "
            f"questions, for these draws; more is the extra loss without {found.chosen} heads "
            "compared with random ones. overlap is the share of heads that two random draws have "
            "in common: where it is large, the band says little about other draws.",
            found.plot(),
            frame=found.summary(),
        ),
        Section("Questions", table=question_table(found)),
    ]
    if probing is not None:
        write_table(folder, "probe.csv", probing.frame())
        sections.append(
            Section(
                "The probe",
                "A classifier that predicts the function from the heads' z, evaluated on questions "
                "about other subjects than it was trained on. probe.csv has every head's "
                "importance.",
                table=probe_table(probing),
            )
        )
    if matrix is not None:
        write_table(folder, "matrix.csv", matrix.frame())
        sections.append(
            Section(
                "Whose heads does a function need?",
                "Each cell: the metric with the row's heads masked, and below it with equally many "
                "random heads masked. Red: the row's heads matter more than random ones.",
                matrix.plot(),
            )
        )
    if orders:
        sections.append(
            Section(
                "Do low-order functions feed high-order ones?",
                compare_orders(*orders).sentence,
                orders[0].plot(),
            )
        )
    sections += [broken_section(answers) for answers in found.functions]
    without = listed(found.heads) if found.heads else f"its top heads ({found.method})"
    title = f"{found.model}: what does it answer without {without}?"
    return write_reports(folder, title, sections, found, record)


def question_table(found: Masking) -> dict[str, str]:
    """How many questions ranked the heads and how many were answered, and which are missing."""
    ranked = {
        name: f"{n} to rank the heads, " for name, n in found.ranked.items() if not found.heads
    }
    table = {
        a.function: f"{ranked.get(a.function, '')}{len(a.prompts)} {'others ' * bool(ranked)}"
        "to answer"
        for a in found.functions
    }
    table |= {name: f"left out: only {n} questions" for name, n in found.left_out.items()}
    return table | {"Too long for the model": str(found.too_long)}


def probe_table(probing: Probing) -> dict[str, str]:
    """How good the probe is, and how many heads matter."""
    low, high = wilson(probing.right, probing.n)
    return {
        "Accuracy": f"{probing.accuracy:.1%} of {probing.n} (95% {low:.1%} to {high:.1%})",
        "Always predicting the most common function": f"{probing.chance:.1%}",
        **{f"Heads before the elbow, {name}": str(n) for name, n in probing.elbows.items()},
    }


def broken_section(answers: FunctionAnswers) -> Section:
    """Answers that broke, or a note that none did."""
    frame, heading = broken(answers), f"Broken answers: {answers.function}"
    if len(frame):
        return Section(heading, frame=frame)
    right = int(answers.right()[0].sum())
    return Section(
        heading,
        f"None: {right} of {len(answers.prompts)} answers are right with all heads, and all of "
        f"these stay right without {_without(answers)}."
        if right
        else f"None: of {len(answers.prompts)} answers, none is right even with all heads.",
    )


def broken(answers: FunctionAnswers, n: int = 5) -> "pd.DataFrame":
    """Answers that are right (exact match) with all heads and wrong without the masked ones."""
    import pandas as pd

    rows = []
    last = _last(answers)
    right = answers.right()
    for j in (right[0] > right[last]).nonzero()[:n, 0].tolist():
        question = answers.prompts[j].rstrip().splitlines()
        asked = " / ".join(line for line in question[-2:] if line.strip())
        said = answers.said[0][j].strip(), answers.said[last][j].strip()
        rows.append((asked, answers.gold[j][0], *said))
    columns = ["question", "right", "all heads", f"without {_without(answers)}"]
    return pd.DataFrame(rows, columns=pd.Index(columns))


def ranking_frame(found: Masking) -> "pd.DataFrame":
    """A tidy frame: function, rank (from 1), head."""
    import pandas as pd

    rows = [
        (answers.function, rank, name_of(*head))
        for answers in found.functions
        for rank, head in enumerate(answers.ranking, start=1)
    ]
    return pd.DataFrame(rows, columns=pd.Index(["function", "rank", "head"]))


def _last(answers: FunctionAnswers) -> int:
    """The condition that masks the most heads, random ones aside."""
    wanted = answers.chosen, answers.sizes[-1]
    return next(i for i, c in enumerate(answers.conditions) if (c.selection, c.k) == wanted)


def _without(answers: FunctionAnswers) -> str:
    """What is masked there, in words."""
    condition = answers.conditions[_last(answers)]
    given = condition.selection == GIVEN
    return listed(condition.heads, most=4) if given else f"the first {condition.k}"


def _masked(found: Masking) -> str:
    if found.heads:
        return f"The given heads, {listed(found.heads, most=40)}"
    return f"Heads are ranked by {found.method}; the first k"


def _where(positions: str) -> str:
    return "all positions" if positions == "all" else "the last position of every pass"
