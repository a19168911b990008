"""Verb `show`: what a task asks, and how well a model answers."""

from mechheads.cli.parse import run
from mechheads.errors import unknown


def show(
    *,
    task: str = "ioi",
    model: str = "mini",
    n: int = 5,
    seed: int = 0,
    split: str = "test",
    metric: str | None = None,
    test: int | None = None,
    revision: str | None = None,
    device: str | None = None,
    dtype: str = "float32",
    process: bool = False,
    n_devices: int = 1,
    n_ctx: int | None = None,
    prepend_bos: bool | None = None,
    quiet: bool = False,
    **options: str,
) -> None:
    """Look at a task: its prompts with the differing tokens marked, and whether a model can do it.

    Args:
        task: a built-in task (below), a .jsonl file with clean, corrupt, answer and wrong, or all:
            a table of all built-in tasks, no prompts
        model: mini, mini-sparse, smollm2, a model directory, a .gguf file or a hub id
        n: prompts to print
        seed: of the prompts
        split: test, train (what our embedded models have seen) or all
        metric: logit_diff, logit_diff_max, prob_diff, logprob, accuracy, top1; default: the task's
        test: prompts to measure the model on; default: 64, or all lines of a task file. With --task
            all, as many as a task has if it has fewer
        revision: branch, tag or commit of a hub model
        device: cpu, cuda, cuda:1, mps; default: the best there is
        dtype: float32, float64, bfloat16 or float16
        process: fold layer norms and centre weights
        n_devices: GPUs to spread the layers over
        n_ctx: longest input in tokens; default: the model's own limit, at most 2048
        prepend_bos: true or false; default: TransformerLens's custom for the architecture
        quiet: no notices and no progress bar
        options: the task's own options
    """
    import tasks
    from mechheads.errors import MechheadsError
    from mechheads.models import locate
    from mechheads.progress import say

    # What can be wrong is looked at before torch is imported.
    names = list(tasks.TASKS) if task == "all" else [task]
    if task == "all" and options:
        raise MechheadsError(f"unknown flag --{next(iter(options))}: --task all has no options.")
    for name in names:
        tasks.check(name, n, split, options)
    count = tasks.default_count(task, 64) if test is None else test
    if count < 1:
        raise MechheadsError(f"--test takes 1 or more prompts, got {count}.")
    locate.find(model, revision, quiet=quiet)
    say(f"Loading {model} ...", quiet)
    from mechheads import metrics
    from mechheads.cli.console import print_evaluation, print_evaluations, print_prompts
    from mechheads.models.load import load
    from mechheads.models.model import is_gated
    from mechheads.observe.edges import count_edges
    from mechheads.observe.evaluation import evaluate
    from mechheads.prompts import lexicon_of

    if metric:
        metrics.find(metric)

    loaded = load(
        model,
        revision=revision,
        device=device,
        dtype=dtype,
        process=process,
        n_devices=n_devices,
        n_ctx=n_ctx,
        prepend_bos=prepend_bos,
        quiet=quiet,
    )
    words, several = lexicon_of(loaded), len(names) > 1
    rows = []
    for name in names:
        wanted = count if several else max(n, count)
        prompts = tasks.make(
            name, words, n=wanted, seed=seed, split=split, or_all=several, **options
        )
        measured = prompts.first(count)
        edges = count_edges(loaded, measured, quiet=quiet) if is_gated(loaded) else None
        rows.append((evaluate(loaded, measured, metric, quiet=quiet), edges))
        if not several:
            print_prompts(loaded, prompts, n)
            print_evaluation(*rows[-1])
    if several:
        print_evaluations(rows)


def notes() -> str:
    """The tasks and their own flags, for the help text."""
    from mechheads.options import choices
    from tasks import TASKS

    lines = ["Tasks and their own flags:"]
    for task in TASKS.values():
        lines.append(f"  {task.name:<18}{task.summary}")
        for option in task.options.values():
            listed = ", ".join(choices(option.annotation))
            default = "" if option.default is None else f" [{option.default}]"
            flag = f"--{option.name.replace('_', '-')}{default}"
            lines.append(f"  {'':<18}{flag}{' of ' * bool(listed)}{listed}")
    return "\n".join(lines)


def task_flags() -> list[str]:
    """The names of all tasks' own options."""
    from tasks import TASKS

    return sorted({option for task in TASKS.values() for option in task.options})


def check_task(task: str) -> None:
    """An error if it is neither a task's name nor that of a file."""
    from tasks import TASKS, is_file

    if not is_file(task) and task not in TASKS:
        raise unknown("task", task, TASKS)


def task_has(task: str, option: str) -> bool:
    """Whether an option is the task's own; a file of prompts has none."""
    from tasks import TASKS

    return task in TASKS and option in TASKS[task].options


if __name__ == "__main__":
    run(show, notes, task_flags)
