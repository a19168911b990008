"""Is a circuit good? What it explains, what is left without it, and what each head contributes.

- faithfulness: f of the circuit alone, with all other heads replaced;
- completeness: f of all heads but the circuit; near 0 if no other heads can do the task;
- minimality: how much f drops when a head is removed from the circuit.

In a soft circuit, every head is kept as far as its gate says, and left out of the rest as far.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.engine.head_subsets import keep_only, measure_subsets
from mechheads.errors import MechheadsError
from mechheads.heads import check_heads, count_of, listed, name_of
from mechheads.metrics import MetricLike
from mechheads.models.model import Model, shape_of
from mechheads.prompts import Prompts
from mechheads.runs.result import Result
from mechheads.scoring.statistics import bootstrap

from .circuit import Circuit, Head
from .measured import check_gap, explained, explained_by_prompt

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
        low, high = (end.tolist() for end in self.explained_interval())
        return {
            "faithfulness": self.faithfulness,
            "faithfulness_low": low[2],
            "faithfulness_high": high[2],
            "left_without": self.left,
            "left_low": low[3],
            "left_high": high[3],
            "idle_heads": [name_of(*head) for head in self.idle],
        }

    @property
    def sentence(self) -> str:
        """The same in words."""
        found = self.headline
        return (
            f"The circuit of {count_of(self.heads)} explains {self.faithfulness:z.0%} (95% "
            f"interval over prompts: {found['faithfulness_low']:z.0%} to "
            f"{found['faithfulness_high']:z.0%}); without it, {self.left:z.0%} is left "
            f"({found['left_low']:z.0%} to {found['left_high']:z.0%}). Heads not shown to "
            f"contribute: {listed(self.idle) or 'none'}."
        )

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Interval of `contribution`, over prompts (symmetric bootstrap-t)."""
        found = self._by_prompt()
        return bootstrap(found[:, 2:3] - found[:, 4:], level)

    def explained_interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Interval of `explained`, over prompts (symmetric bootstrap-t)."""
        return bootstrap(self._by_prompt(), level)

    def _by_prompt(self) -> Float[Tensor, "prompt kept"]:
        return explained_by_prompt(self.values, none=0, whole=1).T

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
    circuit: Any,
    metric: MetricLike | None = None,
    *,
    replacement: str = "corrupt",
    budget: int | None = None,
    quiet: bool = False,
) -> Faithfulness:
    """Evaluate a circuit: faithfulness, completeness and minimality.

    Args:
        model: what `mechheads.load` returns
        prompts: what `tasks.make` returns; use other prompts than those that found the circuit
        circuit: the heads to keep, at least one: a Circuit, "L9H6,L9H9" or a list of heads; a
            soft circuit scales its heads by their gates
        metric: a name in `mechheads.METRICS`, or your own function; default: the task's own
        replacement: what replaces heads not kept: "corrupt", "zero", "mean" or "position_mean"
        budget: tokens per pass, which bounds memory; default: chosen for the device
        quiet: show no progress bar

    Returns:
        Faithfulness: what the circuit explains, what is left without it, and how much each of its
        heads contributes. Costs a pass for each of 4 + heads subsets.

    >>> import circuits, mechheads, tasks
    >>> model = mechheads.load("mini")
    >>> prompts = tasks.make("ioi", model, n=8)
    >>> found = circuits.faithfulness(model, prompts, "L3H4,L3H3,L2H2", quiet=True)
    >>> 0 < found.faithfulness < 1
    True
    """
    layers, heads = shape_of(model).grid
    every = [(layer, head) for layer in range(layers) for head in range(heads)]
    circuit = as_circuit(model, circuit)
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
        keep[3, layer, head] = 1 - gate
        keep[4:, layer, head] *= gate
    values = measure_subsets(
        model, prompts, keep, metric, replacement=replacement, budget=budget, quiet=quiet
    )
    check_gap(model, prompts, values[0], values[1])
    return Faithfulness(tuple(circuit.heads), values)


def as_circuit(model: Model, circuit: Any) -> Circuit:
    """Heads in any spelling as a circuit of this model, or an error: it has at least one head."""
    found = circuit if isinstance(circuit, Circuit) else Circuit("given", circuit)
    if not found.heads:
        raise MechheadsError("The circuit has no heads. Give at least one, for example L9H6.")
    check_heads(found.heads, *shape_of(model).grid)
    return found


def _explained(means: Float[Tensor, "*draw kept"]) -> Float[Tensor, "*draw kept"]:
    return explained(means, none=0, whole=1)
