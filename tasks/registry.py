"""The task registry, and how prompts are made from it."""

import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mechheads.errors import MechheadsError, MechheadsWarning, unknown
from mechheads.options import read_value
from mechheads.plugins import Table
from mechheads.prompts import (
    MOST,
    Lexicon,
    Maker,
    Prompts,
    Split,
    Task,
    draw,
    drop_misaligned,
    encoder_for,
    lexicon_of,
    tokenize,
    words_as_tokens,
)

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
from .known import KNOWN, PREFIX

TASKS = Table(
    "task",
    Task,
    (
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
    ),
)


USUAL = "ioi"


def default_task(model: str) -> str:
    """The task for a model if none is chosen: the known models have their own.

    >>> default_task("mini"), default_task("known/induction")
    ('ioi', 'known/induction')
    """
    return model if model in KNOWN else USUAL


def find(task: str) -> Task:
    """The task of that name; an unknown name raises an error."""
    if task in KNOWN:
        return KNOWN[task]
    if task not in TASKS:
        raise unknown("task", task, KNOWN if task.startswith(PREFIX) else TASKS)
    return TASKS[task]


def register(
    name: str, *, metric: str = "logit_diff", replace: bool = False
) -> Callable[[Callable[..., Maker]], Callable[..., Maker]]:
    """Register your own task, as a decorator of its maker.

    The maker takes a Lexicon and its own options by keyword, and returns a function that makes a
    `Pair` from a `random.Random`. The task then works wherever a task's name does.

    Args:
        name: what the task is called
        metric: a name in `mechheads.METRICS`
        replace: replace a task of that name, for example when a notebook cell is run again

    Returns:
        The decorator, which returns the maker unchanged.

    >>> import tasks
    >>> @tasks.register("counting", replace=True)
    ... def counting(lexicon, *, high: int = 8):
    ...     def make(rng):
    ...         n = rng.randrange(2, high)
    ...         return tasks.Pair(f"1 {n}", f"1 {n - 1}", (f" {n + 1}",), (f" {n}",))
    ...     return make
    >>> len(tasks.make("counting", tasks.words_as_tokens(), n=3, split="all"))
    3
    """

    def add(maker: Callable[..., Maker]) -> Callable[..., Maker]:
        TASKS.register(Task(name, maker, metric), replace=replace)
        return maker

    return add


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
    try:
        found = find(task)
    except MechheadsError as error:
        raise MechheadsError(f"{error} Or give your own .jsonl file.") from None
    options = found.read_options(options)
    found.maker(words_as_tokens(), **options)(random.Random(0))
    return options


def make(
    task: str | Path,
    model: Any,
    *,
    n: int | None = None,
    seed: int = 0,
    split: str = "test",
    or_all: bool = False,
    skip_misaligned: bool = False,
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
        skip_misaligned: leave out the lines of a file that cannot be used with this tokenizer, e.g.
            because clean and corrupt differ in length; `skipped` counts them
        options: the task's own options, e.g. `shots=2`

    Returns:
        Prompts: the pairs, and the metric that suits the task. Costs no forward pass.

    >>> import mechheads, tasks
    >>> prompts = tasks.make("greater_than", mechheads.load("mini"), n=2)
    >>> len(prompts.pairs)
    2
    """
    if not isinstance(task, str | Path):
        raise MechheadsError(
            "tasks.make takes the name or file of a task first, then a model; got "
            f"{type(task).__name__}."
        )
    task, n = str(task), read_value(n, int | None, "n")
    options = check(task, n, split, options)
    if is_file(task):
        prompts = from_file(task)
        if skip_misaligned:
            prompts = drop_misaligned(encoder_for(model), prompts)
        prompts = sample(prompts, n, seed)
        if not isinstance(model, Lexicon):
            tokenize(encoder_for(model), prompts)  # the error lists every line that is misaligned
        return prompts
    lexicon, found = lexicon_of(model), find(task)
    maker, rng = found.maker(lexicon, **options), random.Random(f"{task}/{seed}")
    if task in ("ioi", "ioi_long") and (notice := ioi.left_out_notice(lexicon, options)):
        warnings.warn(notice, MechheadsWarning, stacklevel=2)
    pairs = draw(maker, 32 if n is None else n, rng, split, or_all=or_all)
    return Prompts(task, found.metric, tuple(pairs), seed, split, options)


def default_count(task: str, count: int, model: Any = None) -> int:
    """`count` for a built-in task, the number of different prompts for a task file.

    With a model, only those that can be used with its tokenizer.
    """
    if not is_file(task):
        return count
    prompts = from_file(task)
    usable = prompts if model is None else drop_misaligned(encoder_for(model), prompts)
    return len(set(usable.pairs))


def is_file(task: str) -> bool:
    """Whether the task is a user's file rather than the name of a built-in task."""
    if task.startswith(PREFIX):
        return task.endswith(".jsonl")
    return task.endswith((".jsonl", ".json", ".ndjson")) or "/" in task or "\\" in task


def check_name(task: str) -> None:
    """Raise if it is neither a built-in task nor a file name."""
    if not is_file(task):
        find(task)


def has_option(task: str, option: str) -> bool:
    """Whether a task has that option; files have none."""
    return task in TASKS and option in TASKS[task].options


def all_options() -> list[str]:
    """The names of the options of all tasks."""
    return sorted({option for task in TASKS.values() for option in task.options})
