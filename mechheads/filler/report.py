"""What a run of prefix leaves behind: tables, arrays, and a report."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..heads import name_of
from ..pages import Section
from ..reports import write_reports
from ..runs import Record, write_table
from .accuracy import Accuracies
from .figures import draw_change, draw_sweep
from .weights import Attention

if TYPE_CHECKING:
    import pandas as pd


def write_filler(
    folder: Path,
    found: Accuracies,
    attention: Sequence[Attention],
    sweeps: Mapping[str, Accuracies],
    record: Record,
    sentence: str,
) -> None:
    """accuracy.csv, attention.csv, answers.csv, sweep.csv, arrays and both reports.

    attention.csv of several models has the model as its first column.
    """
    write_table(folder, "accuracy.csv", found.frame())
    write_table(folder, "attention.csv", attention_frame(attention))
    write_table(folder, "answers.csv", answer_frame(found))
    found.save(folder / "accuracy.safetensors")
    sections = [
        Section(
            "Accuracy",
            "The same questions under every condition; whiskers are 95 % intervals (Wilson), p is "
            "McNemar's exact test against no filler, corrected for the number of comparisons "
            "(Holm).",
            found.plot(),
            frame=found.frame(),
        )
    ]
    for i, one in enumerate(attention):
        one.save(folder / f"attention_{i}.safetensors")
        sections += _attention_sections(one)
    for name, sweep in sweeps.items():
        write_table(folder, f"sweep_{name}.csv", sweep.frame())
        title = {"place": "where the run is", "length": "fillers in the run", "filler": "filler"}
        sections.append(
            Section(
                f"Sweep over the {name}",
                "Accuracy with meaningless filler; p-values are against the first value.",
                draw_sweep(sweep, title[name]),
                frame=sweep.frame(),
            )
        )
    title = "What do meaningless tokens do to accuracy and attention?"
    write_reports(folder, title, sections, record, sentence)


def attention_frame(attention: Sequence[Attention]) -> "pd.DataFrame":
    """All models' weights; a column for the model where there are several."""
    import pandas as pd

    frames = []
    for one in attention:
        frame = one.frame()
        if len(attention) > 1:
            frame.insert(0, "model", one.model)
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


def answer_frame(found: Accuracies) -> "pd.DataFrame":
    """A tidy frame: model, condition, question (from 0), said, right."""
    import pandas as pd

    rows = [
        (one.model, condition, i, text, bool(one.right[c, i]))
        for one in found.answers
        for c, condition in enumerate(one.conditions)
        for i, text in enumerate(one.said[c])
    ]
    columns = ["model", "condition", "question", "said", "right"]
    return pd.DataFrame(rows, columns=pd.Index(columns))


def mechanism_frame(one: Attention) -> "pd.DataFrame | None":
    """A row per condition: mass, factor, spread, p, explained."""
    import pandas as pd

    rows: list[tuple[Any, ...]] = []
    for condition in one.runs:
        found = one.mechanism(condition)
        if found is not None:
            rows.append((condition, one.runs[condition], *vars(found).values()))
    columns = [
        "condition",
        "tokens inserted",
        "attention on them",
        "common factor",
        "spread over keys",
        "p (one factor)",
        "variance explained by it",
    ]
    return pd.DataFrame(rows, columns=pd.Index(columns)) if rows else None


def _attention_sections(one: Attention) -> list[Section]:
    head, n = name_of(*one.head), len(one.weights["none"])
    dropped = (
        " The first token is an attention sink (more than ten times the usual weight) and left out."
        if one.sink
        else " No attention sink at the first token."
    )
    return [
        Section(
            f"Attention of {head} in {one.model}",
            "The weight of a key is its mean over later queries. Mean over "
            f"{n} prompts whose tokens align, bands are 95 % of prompt samples.{dropped}",
            one.plot(),
        ),
        Section(
            f"The mechanism: {head} in {one.model}",
            "From the queries after the run: the attention that the run takes, and the factor by "
            "which the original weights shrink. A small p says that keys have different factors.",
            frame=mechanism_frame(one),
        ),
        Section(
            f"Where attention moves in {one.model}",
            "Total change of the original tokens' mean weights, with the first filler condition "
            "against none, sinks left out.",
            draw_change(one),
        ),
    ]
