"""What a run of prefix leaves behind: tables, arrays, and a report."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mechheads.heads import name_of
from mechheads.reports.page import Section
from mechheads.reports.run import write_reports
from mechheads.runs.folder import Record, write_table

from .accuracy import Accuracies
from .experiment import Filler
from .figures import NAMES, draw_change
from .weights import COLUMNS, Attention

if TYPE_CHECKING:
    import pandas as pd


def write_filler(folder: Path, found: Filler, record: Record | None = None) -> Path:
    """accuracy.csv, attention.csv, answers.csv, sweep_*.csv, arrays and both reports."""
    accuracies = found.accuracies
    write_table(folder, "accuracy.csv", accuracies.frame())
    write_table(folder, "attention.csv", attention_frame(found.attention))
    write_table(folder, "answers.csv", answer_frame(accuracies))
    found.save(folder)
    sections = [
        Section(
            "Accuracy",
            "The same questions under every condition; whiskers are 95 % intervals (Wilson), p is "
            "McNemar's exact test against no filler, corrected for the number of comparisons "
            "(Holm). cut_off is the share of answers that were as long as --max-tokens allows.",
            accuracies.plot(),
            frame=accuracies.frame(),
        )
    ]
    for one in found.attention:
        sections += _attention_sections(one)
    for name, sweep in found.sweeps.items():
        write_table(folder, f"sweep_{name}.csv", sweep.frame())
        sections.append(
            Section(
                f"Sweep over the {name}",
                "Accuracy with meaningless filler; p-values are against the first value.",
                sweep.plot(),
                frame=sweep.frame(),
            )
        )
    title = "What do meaningless tokens do to accuracy and attention?"
    return write_reports(folder, title, sections, found, record)


def attention_frame(attention: Sequence[Attention]) -> "pd.DataFrame":
    """All models' weights."""
    import pandas as pd

    frames = [one.frame() for one in attention]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=COLUMNS)


def answer_frame(found: Accuracies) -> "pd.DataFrame":
    """A tidy frame: model, condition, question (from 0), said, right."""
    import pandas as pd

    rows = [
        (one.model, condition, i, text, bool(one.right[condition][i]))
        for one in found.answers
        for condition in one.right
        for i, text in enumerate(one.said[condition])
    ]
    columns = ["model", "condition", "question", "said", "right"]
    return pd.DataFrame(rows, columns=pd.Index(columns))


def mechanism_frame(one: Attention) -> "pd.DataFrame":
    """A row per condition: what the run takes, and what that leaves of the original weights."""
    import pandas as pd

    rows = [
        (m.condition, one.runs[m.condition], m.mass, 1 - m.mass, m.factor, m.spread, m.p_value)
        for m in one.mechanisms
    ]
    columns = [
        "condition",
        "tokens inserted",
        "attention on them",
        "1 - that",
        "mean factor of a query",
        "spread of log factors",
        "p (one factor per query)",
    ]
    return pd.DataFrame(rows, columns=pd.Index(columns))


def _attention_sections(one: Attention) -> list[Section]:
    head, n = name_of(*one.head), len(one.original["none"])
    dropped = (
        " The first token is an attention sink (more than ten times the usual weight) and left out."
        if one.sink
        else " No attention sink at the first token."
    )
    weights = Section(
        f"Attention of {head} in {one.model}",
        f"The weight of a key is its mean over later queries, and of {n} prompts whose tokens "
        "align; bands are the 95 % bootstrap interval of the mean over prompts. Among the original "
        f"tokens only, the run's own queries are left out too.{dropped}",
        one.plot(),
    )
    mechanism = Section(
        f"The mechanism: {head} in {one.model}",
        "If the run only enlarged the softmax's denominator, each query after it would shrink its "
        "weights on all original keys by one factor, 1 - the attention that the run takes. A small "
        "p (Friedman's test over prompts) says that keys have different factors. That is to be "
        "expected where positions matter: the run moves the tokens after it to later positions. "
        "The spread is the standard deviation of the logarithm, weighted by attention.",
        frame=mechanism_frame(one),
    )
    change = Section(
        f"Where attention moves in {one.model}",
        f"Total change of the original tokens' mean weights, {NAMES[one.changed]} against none, "
        "sinks left out.",
        draw_change(one),
    )
    return [weights, mechanism, change] if one.mechanisms else [weights, change]
