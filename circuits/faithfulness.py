"""Is a circuit good? What it explains, what is left without it, and what each head is worth.

- faithfulness: f of the circuit alone, everything else replaced;
- completeness: f of everything but the circuit; near 0 if nothing else can do the job;
- minimality: how much f falls when a head is taken out of the circuit.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.engine.head_subsets import keep_only, measure_subsets
from mechheads.models.model import Model, shape_of
from mechheads.prompts import Prompts
from mechheads.scoring.statistics import ends, resample

from .circuit import Circuit, Head

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Judgement:
    """The metric of every prompt with certain heads kept.

    Rows: no heads, all heads, the circuit, all but the circuit, and the circuit without each of its
    heads in turn.
    """

    heads: tuple[Head, ...]
    values: Float[Tensor, "kept prompt"]

    @property
    def faithfulness(self) -> float:
        """f of the circuit alone."""
        return float(_explained(self.values.mean(1))[2])

    @property
    def left(self) -> float:
        """f of everything but the circuit."""
        return float(_explained(self.values.mean(1))[3])

    @property
    def worth(self) -> Float[Tensor, " head"]:
        """How much f of the circuit falls without each head."""
        found = _explained(self.values.mean(1))
        return found[2] - found[4:]

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Bootstrap interval of `worth`, over prompts."""
        n = self.values.shape[1]
        found = _explained(resample(n) @ self.values.T / n)
        return ends(found[:, 2:3] - found[:, 4:], level)

    @property
    def idle(self) -> list[Head]:
        """Heads that have not been shown to be worth anything: their interval reaches 0."""
        low, _ = self.interval()
        return [head for head, end in zip(self.heads, low.tolist(), strict=True) if end <= 0]

    def frame(self) -> "pd.DataFrame":
        """A tidy frame: layer, head, worth, ci_low, ci_high."""
        import pandas as pd

        low, high = self.interval()
        columns = {"worth": self.worth, "ci_low": low, "ci_high": high}
        return pd.DataFrame(
            {"layer": [i for i, _ in self.heads], "head": [h for _, h in self.heads]}
            | {name: value.numpy() for name, value in columns.items()}
        )


def judge(
    model: Model,
    prompts: Prompts,
    circuit: Circuit,
    metric: str | None = None,
    *,
    replacement: str = "corrupt",
    budget: int | None = None,
    quiet: bool = False,
) -> Judgement:
    """All these sets of heads in a few passes; use prompts that did not rank the heads.

    A soft circuit's heads are kept as far as its gates say.
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
    return Judgement(tuple(circuit.heads), values)


def _explained(means: Float[Tensor, "*draw kept"]) -> Float[Tensor, "*draw kept"]:
    none, whole = means[..., :1], means[..., 1:2]
    return (means - none) / (whole - none)
