"""What commands print: prompts with the differing tokens marked, and tables."""

import math
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mechheads.metrics import label_of
from mechheads.models.model import Model, encoder_of
from mechheads.observe.edges import EdgeCounts
from mechheads.observe.evaluation import Evaluation
from mechheads.prompts import Prompts


def print_prompts(model: Model, prompts: Prompts, n: int) -> None:
    """Print the first n pairs, with differing tokens between « and »."""
    for i, pair in enumerate(prompts.pairs[:n], start=1):
        clean = encoder_of(model).ids(pair.clean)
        corrupt = encoder_of(model).ids(pair.corrupt) if pair.corrupt else clean
        differs = [a != b for a, b in zip(clean, corrupt, strict=True)]
        places = ", ".join(str(p) for p, d in enumerate(differs) if d)
        rows = Table.grid(padding=(0, 1))
        rows.add_column(no_wrap=True, style="dim")
        rows.add_column(overflow="fold")
        rows.add_row("clean", _marked(encoder_of(model).texts(clean), differs))
        if pair.corrupt:
            rows.add_row("corrupt", _marked(encoder_of(model).texts(corrupt), differs))
        rows.add_row("answer", Text(_listed(pair.answers)))
        if pair.wrong:
            rows.add_row("wrong", Text(_listed(pair.wrong)))
        rows.add_row("tokens", Text(f"{len(clean)}{f'; they differ at {places}' * any(differs)}"))
        print_plain(Text(f"Prompt {i}", style="bold"), rows, "")


def print_evaluation(evaluation: Evaluation, edges: EdgeCounts | None = None) -> None:
    """Print the metrics on clean and corrupted prompts (mean, standard error), and any warning."""
    n = len(evaluation.clean[evaluation.metric])
    title = Text(f"{evaluation.task} on {evaluation.model}, {n} prompts", style="bold")
    table = Table("metric", box=None, pad_edge=False)
    for side in evaluation.sides:
        table.add_column(side, justify="right")
    for row in evaluation.summary().to_dict("records"):
        table.add_row(
            label_of(row["metric"]),
            *(_value(row[side], row[f"{side}_se"]) for side in evaluation.sides),
        )
    print_plain(title, table, Text("mean ± standard error over prompts", style="dim"))
    if edges:
        heads = edges.used.shape[1] * edges.used.shape[2]
        print(
            f"attention edges used: {edges.density:.2%} of all causal edges, "
            f"{edges.per_prompt:.1f} per prompt, in {edges.live} of {heads} heads"
        )
    if evaluation.warning:
        print_plain(Text(f"\nWarning: {evaluation.warning}", style="bold yellow"))


def print_evaluations(rows: Sequence[tuple[Evaluation, EdgeCounts | None]]) -> None:
    """Print a line per task: accuracies and metric on clean prompts, and edges of sparse models."""
    table = Table("task", box=None, pad_edge=False)
    sparse = any(edges for _, edges in rows)
    columns = ["prompts", "accuracy", "top-1", "metric", ""]
    for title in [*columns, *(["edges", "per prompt", "heads"] if sparse else [])]:
        table.add_column(title, justify="left" if title == "" else "right")
    for evaluation, edges in rows:
        clean = evaluation.clean
        share = [f"{clean[name].mean().item():.1%}" for name in ("accuracy", "top1")]
        label = label_of(evaluation.metric) + (" (!)" if evaluation.warning else "")
        table.add_row(
            evaluation.task,
            str(len(clean["accuracy"])),
            *share,
            f"{clean[evaluation.metric].mean().item():.3f}",
            label,
            *(
                [f"{edges.density:.2%}", f"{edges.per_prompt:.1f}", str(edges.live)]
                if edges
                else []
            ),
        )
    title = Text(f"{rows[0][0].model}, clean prompts", style="bold")
    print_plain(title, table)
    warnings = [evaluation.warning for evaluation, _ in rows if evaluation.warning]
    if warnings:
        print_plain(Text("\n".join(["", *(f"(!) {w}" for w in warnings)]), style="yellow"))


def _console() -> Console:
    # Do not wrap long lines at 80 columns in pipes and files.
    return Console(highlight=False, width=None if sys.stdout.isatty() else 100_000)


def print_plain(*parts: Text | Table | str) -> None:
    """Print without the trailing spaces that pad a table's last column."""
    console = _console()
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
        return f"{', '.join(shown[:3])} ... {shown[-1]} ({len(shown)} in total)"
    return ", ".join(shown)
