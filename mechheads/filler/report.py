"""Files written by a `prefix` run: tables, arrays and reports."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mechheads.heads import name_of
from mechheads.reports.page import Section
from mechheads.reports.run import write_reports
from mechheads.runs.folder import Record, write_table

from .accuracy import Accuracies
from .average_attention import COLUMNS, Attention
from .experiment import Filler
from .figures import NAMES, draw_change

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
            "The same questions under every condition; whiskers are 95 % Wilson intervals, p is "
            "from McNemar's exact test against no filler, Holm-corrected for the number of "
            "comparisons. cut_off is the share of answers that reached --max-tokens.",
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
                f"Sweep over {name}",
                "Accuracy with meaningless filler; p-values are against the first value.",
                sweep.plot(),
                frame=sweep.frame(),
            )
        )
    title = "What do meaningless tokens do to accuracy and attention?"
    return write_reports(folder, title, sections, found, record)


def attention_frame(attention: Sequence[Attention]) -> "pd.DataFrame":
    """The attention weights of all models."""
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
    """One row per condition: the attention on the run, and what is left of the original weights."""
    import pandas as pd

    rows = [
        (m.condition, one.runs[m.condition], m.mass, 1 - m.mass, m.factor, m.spread, m.p_value)
        for m in one.mechanisms
    ]
    columns = [
        "condition",
        "tokens inserted",
        "attention on the run",
        "1 - attention",
        "mean factor of a query",
        "spread of log factors",
        "p (one factor per query)",
    ]
    return pd.DataFrame(rows, columns=pd.Index(columns))


def _attention_sections(one: Attention) -> list[Section]:
    head, n = name_of(*one.head), len(one.original["none"])
    dropped = (
        " The first token is an attention sink (over ten times the median weight) and is left out."
        if one.sink
        else " The first token is not an attention sink."
    )
    weights = Section(
        f"Attention of {head} in {one.model}",
        f"The weight of a key is its mean over later queries and over {n} prompts whose tokens "
        "align; bands are 95% intervals over prompts. The panel of original tokens also "
        f"leaves out the run's own queries.{dropped}",
        one.plot(),
    )
    mechanism = Section(
        f"The mechanism: {head} in {one.model}",
        "If the run only enlarged the softmax denominator, each query after it would shrink its "
        "weights on all original keys by one factor, 1 - the attention on the run. A small p "
        "(Friedman test over prompts) means that keys have different factors. This is expected "
        "where positions matter, since the run shifts the tokens after it to later positions. "
        "The spread is the attention-weighted standard deviation of the log factors.",
        frame=mechanism_frame(one),
    )
    change = Section(
        f"Where attention moves in {one.model}",
        f"Total change in the mean weights of the original tokens, {NAMES[one.changed]} against "
        "none, excluding sinks.",
        draw_change(one),
    )
    return [weights, mechanism, change] if one.mechanisms else [weights, change]
