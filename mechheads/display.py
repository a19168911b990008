"""What the verbs print: prompts with their differing tokens marked, tables, notices."""

import math
import sys

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .batches import token_ids, token_texts
from .edges import Edges
from .evaluation import Evaluation
from .metrics import METRICS
from .models import Model
from .prompts import Prompts


def print_prompts(model: Model, prompts: Prompts, n: int) -> None:
    """The first n pairs; tokens that differ stand between « and »."""
    console = _console()
    for i, pair in enumerate(prompts.pairs[:n], start=1):
        clean, corrupt = token_ids(model, pair.clean), token_ids(model, pair.corrupt)
        differs = [a != b for a, b in zip(clean, corrupt, strict=True)]
        places = ", ".join(str(p) for p, d in enumerate(differs) if d)
        rows = Table.grid(padding=(0, 1))
        rows.add_column(no_wrap=True, style="dim")
        rows.add_column(overflow="fold")
        rows.add_row("clean", _marked(token_texts(model, clean), differs))
        rows.add_row("corrupt", _marked(token_texts(model, corrupt), differs))
        rows.add_row("answer", Text(_listed(pair.answers)))
        rows.add_row("wrong", Text(_listed(pair.wrong)))
        rows.add_row("tokens", Text(f"{len(clean)}; they differ at {places}"))
        _print(console, Text(f"Prompt {i}", style="bold"), rows, "")


def print_evaluation(evaluation: Evaluation) -> None:
    """Mean and standard error of the metrics on clean and corrupted prompts, and any warning."""
    console = _console()
    n = len(evaluation.clean[evaluation.metric])
    title = Text(f"{evaluation.task} on {evaluation.model}, {n} prompts", style="bold")
    table = Table("metric", box=None, pad_edge=False)
    for side in ("clean", "corrupt"):
        table.add_column(side, justify="right")
    for row in evaluation.summary().to_dict("records"):
        table.add_row(
            METRICS[row["metric"]].label,
            *(_value(row[side], row[f"{side}_se"]) for side in ("clean", "corrupt")),
        )
    _print(console, title, table, Text("mean ± standard error over prompts", style="dim"))
    if evaluation.warning:
        _print(console, Text(f"\nWarning: {evaluation.warning}", style="bold yellow"))


def print_edges(edges: Edges) -> None:
    """How many attention edges a sparse model uses on the clean prompts."""
    heads = edges.used.shape[1] * edges.used.shape[2]
    print(
        f"\nattention edges used: {edges.density:.2%} of the causal ones, {edges.per_prompt:.1f} a "
        f"prompt, in {edges.live} of {heads} heads"
    )


def _console() -> Console:
    # A pipe or a file gets long lines as they are, not folded at 80 columns.
    return Console(highlight=False, width=None if sys.stdout.isatty() else 100_000)


def _print(console: Console, *parts: Text | Table | str) -> None:
    """Print without the spaces with which a table fills its last column."""
    with console.capture() as capture:
        for part in parts:
            console.print(part)
    print("\n".join(line.rstrip() for line in capture.get().splitlines()))


def _marked(texts: list[str], differs: list[bool]) -> Text:
    marked = Text()
    for text, differ in zip(texts, differs, strict=True):
        space = text[: len(text) - len(text.lstrip(" "))] if differ else ""
        marked.append(f"{space}«{text[len(space) :]}»" if differ else text, "bold" * differ)
    return marked


def _value(mean: float, error: float) -> str:
    return f"{mean:.3f}" if math.isnan(error) else f"{mean:.3f} ± {error:.3f}"


def _listed(texts: tuple[str, ...]) -> str:
    shown = [repr(text) for text in texts]
    if len(shown) > 8:
        return f"{', '.join(shown[:3])} ... {shown[-1]} ({len(shown)} in all)"
    return ", ".join(shown)
