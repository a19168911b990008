"""What an experiment with filler can be asked for. Nothing here needs torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from mechheads.errors import MechheadsError, unknown
from mechheads.options import read_list

Place = Literal["start", "between", "end", "random"]
PLACES: tuple[str, ...] = get_args(Place)
FILLED = ("mless", "mful", "random")
CONDITIONS = ("none", *FILLED, "arm")
SWEEPS = ("place", "length", "filler")
LENGTHS = (0, 10, 20, 30, 40, 50, 60, 70)
FILLERS = ("/", "?", ".", "#", "*")
# ARM's c and percentile: the authors' for Qwen2.5-Math-1.5B.
ARM_C, ARM_PERCENTILE = 0.13, 99.5
# What stands before the questions of a file.
INSTRUCTION = "Please reason step by step, and put your final answer within \\boxed{}."


@dataclass(frozen=True)
class Design:
    """What the experiment does on every model.

    `run` has the arguments of `insertion.make`, `arm` those of `redistribution.arm`, `answering`
    those of `engine.generate`. A `head` of None is to be found.
    """

    conditions: tuple[str, ...]
    sweeps: tuple[str, ...]
    head: tuple[int, int] | None
    run: Mapping[str, Any]
    arm: Mapping[str, Any]
    answering: Mapping[str, Any]


def read_conditions(text: str) -> tuple[str, ...]:
    """A comma list of conditions, `none` first; at least one of them has filler."""
    listed = _known("condition", read_list(text, str, "--conditions"), CONDITIONS)
    if "none" not in listed:
        raise MechheadsError("--conditions takes none among them, which the others are held to.")
    if not set(listed) & set(FILLED):
        raise MechheadsError(
            "--conditions needs mless, mful or random besides none: tokens whose attention "
            "can be drawn."
        )
    return ("none", *(name for name in listed if name != "none"))


def read_sweeps(text: str) -> tuple[str, ...]:
    """A comma list of what is varied, or nothing."""
    return _known("sweep", read_list(text, str, "--sweep") if text else [], SWEEPS)


def values_of(sweep: str, filler: str) -> tuple[Any, ...]:
    """What a sweep asks for, the one without filler first."""
    return {
        "place": ("none", *PLACES),
        "length": LENGTHS,
        "filler": ("none", *dict.fromkeys((filler, *FILLERS))),
    }[sweep]


def _known(kind: str, names: list[str], choices: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if name not in choices:
            raise unknown(kind, name, choices)
    return tuple(dict.fromkeys(names))
