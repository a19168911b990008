"""Prompts for a job: checked before a model is loaded, made after."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mechheads.errors import MechheadsError
from mechheads.prompts import LEAST, check_prompts
from mechheads.scoring import registry as methods
from tasks import registry as tasks

if TYPE_CHECKING:
    from mechheads.models.model import Model
    from mechheads.prompts import Prompts

DEFAULT = 32  # prompts to rank the heads on, and as many to judge them on
AUTO, MOST = "auto", 128  # as many prompts as it takes to rank the heads, and at most so many


def check(
    task: str, method: str, settings: Mapping[str, Any], options: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The method's options and the task's options, or an error; needs no torch."""
    flags = methods.find(method).flags
    ours = {name: value for name, value in options.items() if name in flags}
    others = {name: value for name, value in options.items() if name not in flags}
    for name in others:
        if any(name in other.flags for other in methods.METHODS.values()) and not tasks.has_option(
            task, name
        ):
            methods.check_flags(method, {name: others[name]})
    for name in ("n", "test"):
        check_prompts(f"--{name}", LEAST if settings[name] in (None, AUTO) else settings[name])
    n = MOST if settings["n"] == AUTO else settings["n"]
    tasks.check(task, n, settings["split"], others)
    return ours, others


def length(parts: "Sequence[Prompts]") -> float:
    """Characters of all prompts: about how long a task takes, next to other tasks."""
    return 1.0 + sum(len(pair.clean) for part in parts for pair in part.pairs)


def ranking_and_judging(
    model: "Model", task: str, settings: Mapping[str, Any], options: Mapping[str, Any]
) -> "tuple[Prompts, Prompts]":
    """Prompts to rank the heads on and prompts to judge them on; no pair is in both.

    With `--n auto`, as many to rank on as there may be.
    """
    n, test = settings["n"], settings["test"]
    auto = n == AUTO
    skip = settings["skip_misaligned"]
    different = tasks.default_count(task, 2 * DEFAULT, model if skip else None)
    half = different // 2
    if half < LEAST and (n is None or test is None):
        raise MechheadsError(
            f"{task} has only {different} different prompts; at least {LEAST} are needed to "
            f"rank and {LEAST} to judge. Add more prompts."
        )
    most = half if tasks.is_file(task) else MOST
    first, second = most if auto else n or half, test or half
    made = tasks.make(
        task,
        model,
        n=first + second,
        seed=settings["seed"],
        split=settings["split"],
        skip_misaligned=skip,
        or_all=auto,
        **dict(options),
    )
    if auto and len(made) >= second + LEAST:
        first = min(first, len(made) - second)
    if len(made) < first + second:
        raise MechheadsError(
            f"{task} has {len(made)} different prompts, but {first} to rank and {second} to judge "
            "were requested. Use a smaller --n or --test."
        )
    ranked, judged = made.split_at(first)
    if not ranked.pairs or not judged.pairs:
        raise MechheadsError(
            f"All {len(made)} prompts of {task} are of one group, so that none are left to judge "
            "the ranking. Give prompts of several groups."
        )
    return ranked, judged
