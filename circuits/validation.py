"""Is a circuit good? What it explains, what is left without it, and what each head contributes.

- faithfulness: f of the circuit alone, with all other heads replaced;
- completeness: f of all heads but the circuit; near 0 if no other heads can do the task;
- minimality: how much f drops when a head is removed from the circuit.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.engine.head_subsets import keep_only, measure_subsets
from mechheads.heads import name_of
from mechheads.models.model import Model, shape_of
from mechheads.prompts import Prompts
from mechheads.runs.result import Result
from mechheads.scoring.statistics import ends, resample

from .circuit import Circuit, Head
from .curve import explained

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Faithfulness(Result):
    """The metric of every prompt with certain heads kept.

    Rows: no heads, all heads, the circuit, all but the circuit, and the circuit without each of its
    heads in turn.
    """

    heads: tuple[Head, ...]
    values: Float[Tensor, "kept prompt"]

    def check(self) -> None:
        """Raise a ValueError if the rows do not match the heads."""
        if len(self.values) != 4 + len(self.heads):
            raise ValueError("its rows do not match its heads")

    @property
    def explained(self) -> Float[Tensor, " kept"]:
        """f of every row."""
        return _explained(self.values.mean(1))

    @property
    def faithfulness(self) -> float:
        """f of the circuit alone."""
        return float(self.explained[2])

    @property
    def left(self) -> float:
        """f of all heads but the circuit."""
        return float(self.explained[3])

    @property
    def contribution(self) -> Float[Tensor, " head"]:
        """How much f of the circuit drops without each head."""
        return self.explained[2] - self.explained[4:]

    @property
    def headline(self) -> dict[str, Any]:
        """The numbers that sum it up."""
        return {
            "faithfulness": self.faithfulness,
            "left_without": self.left,
            "idle_heads": [name_of(*head) for head in self.idle],
        }

    @property
    def sentence(self) -> str:
        """The same in words."""
        return (
            f"The circuit of {len(self.heads)} heads explains {self.faithfulness:.0%}; without it, "
            f"{self.left:.0%} is left."
        )

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Bootstrap interval of `contribution`, over prompts."""
        n = self.values.shape[1]
        found = _explained(resample(n) @ self.values.T / n)
        return ends(found[:, 2:3] - found[:, 4:], level)

    @property
    def idle(self) -> list[Head]:
        """Heads not shown to contribute: the interval of their contribution reaches 0."""
        low, _ = self.interval()
        return [head for head, end in zip(self.heads, low.tolist(), strict=True) if end <= 0]

    def frame(self) -> "pd.DataFrame":
        """A tidy frame: layer, head, contribution, ci_low, ci_high."""
        import pandas as pd

        low, high = self.interval()
        columns = {"contribution": self.contribution, "ci_low": low, "ci_high": high}
        return pd.DataFrame(
            {"layer": [i for i, _ in self.heads], "head": [h for _, h in self.heads]}
            | {name: value.numpy() for name, value in columns.items()}
        )


def faithfulness(
    model: Model,
    prompts: Prompts,
    circuit: Circuit,
    metric: str | None = None,
    *,
    replacement: str = "corrupt",
    budget: int | None = None,
    quiet: bool = False,
) -> Faithfulness:
    """Evaluate a circuit: faithfulness, completeness and minimality.

    Args:
        model: what `mechheads.load` returns
        prompts: what `tasks.make` returns; use other prompts than those that found the circuit
        circuit: the heads to keep; a soft circuit scales its heads by their gates
        metric: a name in `mechheads.METRICS`; default: the task's own
        replacement: what replaces heads not kept: "corrupt", "zero", "mean" or "position_mean"
        budget: tokens per pass, which bounds memory; default: chosen for the device
        quiet: show no progress bar

    Returns:
        Faithfulness: what the circuit explains, what is left without it, and how much each of its
        heads contributes. Costs a pass for each of 4 + heads subsets.

    >>> import circuits, mechheads, tasks
    >>> model = mechheads.load("mini")
    >>> circuit = circuits.Circuit("mine", ((3, 4), (3, 3), (2, 2)))
    >>> found = circuits.faithfulness(model, tasks.make("ioi", model, n=8), circuit, quiet=True)
    >>> 0 < found.faithfulness < 1
    True
    """
    layers, heads = shape_of(model).grid
    every = [(layer, head) for layer in range(layers) for head in range(heads)]
    inside = set(circuit.heads)
    sets = [
        [],
        every,
        circuit.heads,
        [head for head in every if head not in inside],
        *([other for other in circuit.heads if other != head] for head in circuit.heads),
    ]
    keep = torch.stack([keep_only(kept, layers, heads) for kept in sets])
    for (layer, head), gate in circuit.gates.items():
        keep[2, layer, head] *= gate
        keep[4:, layer, head] *= gate
    values = measure_subsets(
        model, prompts, keep, metric, replacement=replacement, budget=budget, quiet=quiet
    )
    return Faithfulness(tuple(circuit.heads), values)


def _explained(means: Float[Tensor, "*draw kept"]) -> Float[Tensor, "*draw kept"]:
    return explained(means, none=0, whole=1)
