"""Reads what contrastive gating should retain and forget: tasks with their options, as text.

read_contrasts("syntax:shots=1", "syntax:shots=0", None)            one trial of two tasks
read_contrasts("shots=1", "shots=0", "syntax:kind=past,math")       one for every task left out
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mechheads.errors import MechheadsError
from mechheads.options import read_list, read_pairs

from .registry import TASKS, check, is_file


@dataclass(frozen=True)
class Format:
    """A task with its own options, as written in --retain, --forget and --family."""

    task: str
    options: Mapping[str, str]

    @property
    def name(self) -> str:
        """The task and options as text."""
        listed = "+".join(f"{key}={value}" for key, value in self.options.items())
        return f"{self.task}:{listed}" if listed else self.task

    @property
    def meaning(self) -> tuple[Any, ...]:
        """The task with all its options, converted to their types; raises if one is invalid."""
        given = check(self.task, None, "all", dict(self.options))
        own = {} if is_file(self.task) else TASKS[self.task].options
        return self.task, *sorted(({name: p.default for name, p in own.items()} | given).items())


@dataclass(frozen=True)
class ContrastPlan:
    """A trial: the task left out of the fit, what to retain and forget, and the tests of both."""

    left_out: str
    retain: tuple[Format, ...]
    forget: tuple[Format, ...]
    tests: tuple[Format, Format]

    @property
    def formats(self) -> tuple[Format, ...]:
        """All formats that the trial needs prompts of."""
        return *self.retain, *self.forget, *self.tests


def read_contrasts(
    retain: str | None, forget: str | None, family: str | None
) -> list[ContrastPlan]:
    """A trial of two tasks, or one trial per left-out task of a family."""
    if retain is None and forget is None and family is None:
        return []
    if retain is None or forget is None:
        raise MechheadsError("Contrastive gating needs both --retain and --forget.")
    if family is None:
        kept, lost = _format(retain, "--retain"), _format(forget, "--forget")
        _check_apart(kept, lost)
        return [ContrastPlan("", (kept,), (lost,), (kept, lost))]
    listed = [_format(text, "--family") for text in read_list(family, str, "--family")]
    if len({task.meaning for task in listed}) < max(2, len(listed)):
        raise MechheadsError(f"--family takes two or more different tasks, got {family}.")
    changes = [
        read_pairs(text, flag) for text, flag in ((retain, "--retain"), (forget, "--forget"))
    ]
    sides = [[Format(t.task, {**t.options, **change}) for t in listed] for change in changes]
    for kept, lost in zip(*sides, strict=True):
        _check_apart(kept, lost)
    return [
        ContrastPlan(
            left_out.name,
            *(tuple(side[:i] + side[i + 1 :]) for side in sides),
            tests=(sides[0][i], sides[1][i]),
        )
        for i, left_out in enumerate(listed)
    ]


def _check_apart(kept: Format, lost: Format) -> None:
    if kept.meaning == lost.meaning:
        raise MechheadsError(f"--retain and --forget are the same: {kept.name}. Change one.")


def _format(text: str, flag: str) -> Format:
    task, _, listed = text.partition(":")
    return Format(task, read_pairs(listed, flag) if listed else {})
