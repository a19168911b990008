"""What we ask: one module per task, and the table of them.

tasks.make("ioi", lexicon, n=32)                    a built-in task
tasks.make("my.jsonl", lexicon)                     a file of the user's own
tasks.from_records([{"clean": ..., ...}])           records or a pandas frame
"""

import random
from typing import Any

from mechheads.errors import MechheadsError, unknown
from mechheads.options import read_value
from mechheads.prompts import MOST, Lexicon, Prompts, Split, Task, draw, words_as_tokens

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
from .files import from_file, from_records, sample

__all__ = ["TASKS", "from_file", "from_records", "make"]

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
    """The options as the task's types, or an error; needs no model, so verbs do it first.

    One prompt is made with plain words for tokens, so that a value the task refuses is noticed.
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
        raise MechheadsError(f"{error} Or give a .jsonl file of your own.")
    options = TASKS[task].read_options(options)
    TASKS[task].maker(words_as_tokens(), **options)(random.Random(0))
    return options


def make(
    task: str,
    lexicon: Lexicon,
    *,
    n: int | None = None,
    seed: int = 0,
    split: str = "test",
    or_all: bool = False,
    **options: Any,
) -> Prompts:
    """The prompts of a built-in task (32 unless told) or of a JSONL file (all unless told).

    They depend on the arguments alone. By default they come from the test split, which our
    embedded models have not seen in training; other models do not care. Where a task has fewer
    than n prompts, that is an error, or with `or_all` all of them are given.
    """
    if not isinstance(lexicon, Lexicon):
        raise MechheadsError("tasks.make takes mechheads.lexicon(model) after the task's name.")
    options = check(task, n, split, options)
    if is_file(task):
        return sample(from_file(task), n, seed)
    maker, rng = TASKS[task].maker(lexicon, **options), random.Random(f"{task}/{seed}")
    pairs = draw(maker, 32 if n is None else n, rng, split, or_all=or_all)
    return Prompts(task, TASKS[task].metric, tuple(pairs), seed, split, options)


def default_count(task: str, count: int) -> int:
    """`count` prompts of a built-in task, all different ones of a task file."""
    return len(set(from_file(task).pairs)) if is_file(task) else count


def is_file(task: str) -> bool:
    """Whether the task is a file of the user's own rather than the name of a built-in one."""
    return task.endswith((".jsonl", ".json", ".ndjson")) or "/" in task or "\\" in task
