"""The task registry, and how prompts are made from it."""

import random
from typing import Any

from mechheads.errors import MechheadsError, unknown
from mechheads.options import read_value
from mechheads.prompts import MOST, Prompts, Split, Task, draw, lexicon_of, words_as_tokens

from . import (
    common_sense,
    docstring,
    greater_than,
    inference,
    ioi,
    ioi_long,
    knowledge_recall,
    math,
    math_calculation,
    retrieval,
    syntax,
)
from .files import from_file, sample

TASKS = {
    task.name: task
    for task in (
        Task("ioi", ioi.maker, metric="logit_diff"),
        Task("ioi_long", ioi_long.maker, metric="logit_diff"),
        Task("docstring", docstring.maker, metric="logit_diff_max"),
        Task("greater_than", greater_than.maker, metric="prob_diff"),
        Task("math", math.maker, metric="logit_diff"),
        Task("syntax", syntax.maker, metric="logit_diff"),
        Task("common_sense", common_sense.maker, metric="logit_diff"),
        Task("retrieval", retrieval.maker, metric="logit_diff", function="Retrieval"),
        Task("knowledge_recall", knowledge_recall.maker, "logit_diff", "Knowledge Recall"),
        Task("math_calculation", math_calculation.maker, "logit_diff", "Math Calculation"),
        Task("inference", inference.maker, metric="logit_diff", function="Inference"),
    )
}


def check(task: str, n: int | None, split: str, options: dict[str, Any]) -> dict[str, Any]:
    """Convert options to the task's types, or raise; needs no model, so commands call it first.

    Makes one prompt with plain words as tokens, to catch values that the task rejects.
    """
    read_value(split, Split, "--split")
    n = read_value(n, int | None, "--n")
    if n is not None and not 1 <= n <= MOST:
        raise MechheadsError(f"--n takes 1 to {MOST:,} prompts, got {n}.")
    if is_file(task):
        if options:
            raise MechheadsError(
                f"unknown flag --{next(iter(options))}: task files have no options."
            )
        from_file(task)
        return {}
    if task not in TASKS:
        error = unknown("task", task, TASKS)
        raise MechheadsError(f"{error} Or give your own .jsonl file.")
    options = TASKS[task].read_options(options)
    TASKS[task].maker(words_as_tokens(), **options)(random.Random(0))
    return options


def make(
    task: str,
    model: Any,
    *,
    n: int | None = None,
    seed: int = 0,
    split: str = "test",
    or_all: bool = False,
    **options: Any,
) -> Prompts:
    """Make clean and corrupted prompt pairs for a task.

    Args:
        task: the name of a built-in task (`tasks.TASKS`), or your own .jsonl file
        model: a loaded model, a tokenizer or a Lexicon: prompts are made of words that are single
            tokens for it
        n: number of pairs; default: 32, or all lines of a file
        seed: the same arguments always give the same prompts
        split: "test" (held out when our embedded models were trained), "train" or "all"
        or_all: if the task has fewer than n different pairs, return them all instead of raising
        options: the task's own options, e.g. `shots=2`

    Returns:
        Prompts: the pairs, and the metric that suits the task. Costs no forward pass.

    >>> import mechheads, tasks
    >>> prompts = tasks.make("greater_than", mechheads.load("mini"), n=2)
    >>> len(prompts.pairs)
    2
    """
    options, lexicon = check(task, n, split, options), lexicon_of(model)
    if is_file(task):
        return sample(from_file(task), n, seed)
    maker, rng = TASKS[task].maker(lexicon, **options), random.Random(f"{task}/{seed}")
    pairs = draw(maker, 32 if n is None else n, rng, split, or_all=or_all)
    return Prompts(task, TASKS[task].metric, tuple(pairs), seed, split, options)


def default_count(task: str, count: int) -> int:
    """`count` for a built-in task, the number of different prompts for a task file."""
    return len(set(from_file(task).pairs)) if is_file(task) else count


def is_file(task: str) -> bool:
    """Whether the task is a user's file rather than the name of a built-in task."""
    return task.endswith((".jsonl", ".json", ".ndjson")) or "/" in task or "\\" in task


def check_name(task: str) -> None:
    """Raise if it is neither a built-in task nor a file name."""
    if not is_file(task) and task not in TASKS:
        raise unknown("task", task, TASKS)


def has_option(task: str, option: str) -> bool:
    """Whether a task has that option; files have none."""
    return task in TASKS and option in TASKS[task].options


def all_options() -> list[str]:
    """The names of the options of all tasks."""
    return sorted({option for task in TASKS.values() for option in task.options})
