"""What we ask: one module per task, and the table of them.

tasks.make("ioi", lexicon, n=32)                    a built-in task
tasks.make("my.jsonl", lexicon)                     a file of the user's own
tasks.from_records([{"clean": ..., ...}])           records or a pandas frame
"""

from typing import Any

from mechheads.errors import MechheadsError, unknown
from mechheads.prompts import Lexicon, Prompts, Task, words_as_tokens

from . import docstring, greater_than, ioi, ioi_long, math
from .own import from_file, from_records, sample

__all__ = ["TASKS", "from_file", "from_records", "make"]

TASKS = {
    task.name: task
    for task in (
        Task("ioi", ioi.pairs, metric="logit_diff"),
        Task("ioi_long", ioi_long.pairs, metric="logit_diff"),
        Task("docstring", docstring.pairs, metric="logit_diff_max"),
        Task("greater_than", greater_than.pairs, metric="prob_diff"),
        Task("math", math.pairs, metric="logit_diff"),
    )
}


def check(task: str, n: int | None, options: dict[str, Any]) -> dict[str, Any]:
    """The options as the task's types, or an error; needs no model, so verbs do it first.

    One prompt is made with plain words for tokens, so that a value the task refuses is noticed.
    """
    if n is not None and n < 1:
        raise MechheadsError(f"--n takes 1 or more prompts, got {n}.")
    if is_file(task):
        if options:
            raise MechheadsError(
                f"Unknown flag --{next(iter(options))}: task files have no options."
            )
        from_file(task)
        return {}
    if task not in TASKS:
        error = unknown("task", task, TASKS)
        raise MechheadsError(f"{error} Or give a .jsonl file of your own.")
    options = TASKS[task].read_options(options)
    TASKS[task].pairs(1, 0, words_as_tokens(), **options)
    return options


def make(
    task: str, lexicon: Lexicon, *, n: int | None = None, seed: int = 0, **options: Any
) -> Prompts:
    """The prompts of a built-in task (32 unless told) or of a JSONL file (all unless told)."""
    options = check(task, n, options)
    if is_file(task):
        return sample(from_file(task), n, seed)
    made = TASKS[task].pairs(32 if n is None else n, seed, lexicon, **options)
    return Prompts(task, TASKS[task].metric, tuple(made), seed, options)


def is_file(task: str) -> bool:
    """Whether the task is a file of the user's own rather than the name of a built-in one."""
    return task.endswith((".jsonl", ".json", ".ndjson")) or "/" in task or "\\" in task
