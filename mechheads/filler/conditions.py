"""The settings of a filler experiment. Nothing here needs torch."""

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
# ARM's c and percentile: the authors' values for Qwen2.5-Math-1.5B.
ARM_C, ARM_PERCENTILE = 0.13, 99.5
# ARM's pmin: the smallest share of the activations that it moves, by model family, and its pmax.
ARM_PMIN = {"Llama": 0.2, "Qwen": 0.02, "Gemma": 0.02}
ARM_USUAL_PMIN, ARM_PMAX = 0.02, 0.25
# Precedes questions from a file.
INSTRUCTION = "Please reason step by step, and put your final answer within \\boxed{}."


@dataclass(frozen=True)
class Design:
    """What the experiment does on every model.

    `run` has the arguments of `insertion.make`, `arm` those of `redistribution.arm`, `answering`
    those of `engine.generate`. If `head` is None, it is searched for.
    """

    conditions: tuple[str, ...]
    sweeps: tuple[str, ...]
    head: tuple[int, int] | None
    run: Mapping[str, Any]
    arm: Mapping[str, Any]
    answering: Mapping[str, Any]


def read_conditions(text: str) -> tuple[str, ...]:
    """A comma-separated list of conditions, `none` first; at least one has filler."""
    listed = _known("condition", read_list(text, str, "--conditions"), CONDITIONS)
    if "none" not in listed:
        raise MechheadsError("--conditions must include none, which the others are compared with.")
    if not set(listed) & set(FILLED):
        raise MechheadsError(
            "--conditions needs mless, mful or random besides none: their tokens are the ones "
            "whose attention is drawn."
        )
    return ("none", *(name for name in listed if name != "none"))


def read_sweeps(text: str) -> tuple[str, ...]:
    """A comma-separated list of what to vary, or nothing."""
    return _known("sweep", read_list(text, str, "--sweep") if text else [], SWEEPS)


def values_of(sweep: str, filler: str) -> tuple[Any, ...]:
    """The values of a sweep, the one without filler first."""
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
