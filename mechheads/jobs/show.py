"""The job of `show`: print a task's prompts, and how well a model does on them."""

from collections.abc import Mapping
from typing import Any

from mechheads.errors import MechheadsError
from mechheads.models.options import ModelOptions
from mechheads.options import flag_of
from mechheads.packages import check_not_hidden, no_garbage_collection
from mechheads.progress import bar, say

from .run import Finished, print_json


def show_tasks(given: Mapping[str, Any]) -> Finished:
    """Check, load, evaluate and print; the result is a list of `Evaluation`s, one per task."""
    check_not_hidden()
    from tasks import registry as tasks

    loading: ModelOptions = given["loading"]
    task, n, test, options = (given[name] for name in ("task", "n", "test", "options"))
    model, metric, quiet = (given[name] for name in ("model", "metric", "quiet"))
    task = tasks.default_task(model) if task is None else task
    names = list(tasks.TASKS) if task == "all" else [task]
    if task == "all" and options:
        raise MechheadsError(
            f"unknown flag {flag_of(next(iter(options)))}: --task all takes no task options."
        )
    for name in names:
        tasks.check(name, n, given["split"], options)
    count = tasks.default_count(task, 64) if test is None else test
    if count < 1:
        raise MechheadsError(f"--test takes 1 or more prompts, got {count}.")
    loading.find(model, quiet)
    say(f"Loading {model} ...", quiet)
    with no_garbage_collection():
        from mechheads import metrics
        from mechheads.cli.console import print_evaluation, print_evaluations, print_prompts
        from mechheads.models.model import is_gated
        from mechheads.observe.edges import count_edges
        from mechheads.observe.evaluation import evaluate

    if metric:
        metrics.find(metric)
    loaded, several = loading.load(model, quiet=quiet), len(names) > 1
    rows, prompts = [], None
    with bar(len(names), "Tasks", quiet) as progress:
        for name in names:
            prompts = tasks.make(
                name,
                loaded,
                n=count if several else max(n, count),
                seed=given["seed"],
                split=given["split"],
                or_all=several,
                skip_misaligned=given["skip_misaligned"],
                **options,
            )
            measured = prompts.first(count)
            with progress.part(0.6 * is_gated(loaded), name):
                edges = count_edges(loaded, measured, quiet=quiet) if is_gated(loaded) else None
            with progress.part(1 - 0.6 * is_gated(loaded), name):
                rows.append((evaluate(loaded, measured, metric, quiet=quiet), edges))
    if prompts and not several and not given["json"]:
        print_prompts(loaded, prompts, n)
        print_evaluation(*rows[-1])
    found = [evaluation for evaluation, _ in rows]
    if given["json"]:
        headline = {"parts": {one.task: one.headline for one in found}}
        warnings = [words for one in found for words in one.warnings]
        print_json("show", headline, warnings, None, " ".join(one.sentence for one in found))
    elif several:
        print_evaluations(rows)
    return Finished(found, None)
