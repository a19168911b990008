"""Prompts for a job: checked before a model is loaded, made after."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mechheads.errors import MechheadsError
from mechheads.prompts import LEAST, check_prompts
from mechheads.scoring import registry as methods
from tasks import registry as tasks

if TYPE_CHECKING:
    from mechheads.models.model import Model
    from mechheads.prompts import Prompts

DEFAULT = 32  # prompts to rank the heads on, and as many to judge them on


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
        check_prompts(f"--{name}", LEAST if settings[name] is None else settings[name])
    tasks.check(task, settings["n"], settings["split"], others)
    return ours, others


def ranking_and_judging(
    model: "Model", task: str, settings: Mapping[str, Any], options: Mapping[str, Any]
) -> "tuple[Prompts, Prompts]":
    """Prompts to rank the heads on and prompts to judge them on; no pair is in both."""
    n, test = settings["n"], settings["test"]
    half = tasks.default_count(task, 2 * DEFAULT) // 2
    if half < LEAST and (n is None or test is None):
        raise MechheadsError(
            f"{task} has only about {2 * half} different prompts; at least {LEAST} are needed to "
            f"rank and {LEAST} to judge. Add more prompts."
        )
    first, second = n or half, test or half
    made = tasks.make(
        task,
        model,
        n=first + second,
        seed=settings["seed"],
        split=settings["split"],
        **dict(options),
    )
    if len(made) < first + second:
        raise MechheadsError(
            f"{task} has {len(made)} different prompts, but {first} to rank and {second} to judge "
            "were requested. Use a smaller --n or --test."
        )
    return made.split_at(first)
