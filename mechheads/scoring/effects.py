"""What every scoring method gives: how far each head moves the metric, prompt by prompt."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.errors import MechheadsError
from mechheads.runs.serialization import Result

from . import statistics

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go


@dataclass(frozen=True)
class HeadEffects(Result):
    """How far each head moves the metric on each prompt; positive means that the head helps.

    `clean` and `corrupt` are the metric of the untouched runs. `settings` are the method's own
    options, `notes` what it found beside the effects. `unit` is what a column stands for: a head,
    or a key-value head where several heads share one. Where a method has fitted something anew with
    several seeds, `over` says so: a row of `values` is then a seed, and `quantity` is what it has
    of each head instead of a change of the metric.
    """

    task: str
    model: str
    method: str
    metric: str
    values: Float[Tensor, "prompt layer head"]
    clean: Float[Tensor, " prompt"]
    corrupt: Float[Tensor, " prompt"]
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)
    unit: str = "head"
    over: str = "prompts"
    quantity: str = ""

    @property
    def scores(self) -> Float[Tensor, "layer head"]:
        """Mean over prompts."""
        return self.values.mean(0)

    @property
    def errors(self) -> Float[Tensor, "layer head"]:
        """Standard error of the mean."""
        return statistics.standard_error(self.values)

    @property
    def p_values(self) -> Float[Tensor, "layer head"]:
        """Corrected for the number of heads (Benjamini and Hochberg)."""
        return statistics.p_values(self.values)

    def interval(
        self, level: float = 0.95, seed: int = 0
    ) -> tuple[Float[Tensor, "layer head"], Float[Tensor, "layer head"]]:
        """Bootstrap interval of the mean, over prompts."""
        return statistics.bootstrap(self.values, level, seed)

    @property
    def total(self) -> float:
        """Clean less corrupted metric: what all heads together can explain."""
        return (self.clean.mean() - self.corrupt.mean()).item()

    def ranking(self, *, signed: bool = False) -> list[tuple[int, int]]:
        """(layer, head) from the strongest effect to the weakest; by size, or with the sign."""
        scores = self.scores if signed else self.scores.abs()
        order = torch.sort(scores.flatten(), descending=True, stable=True).indices.tolist()
        return [divmod(i, scores.shape[1]) for i in order]

    def frame(self) -> "pd.DataFrame":
        """A tidy frame: layer, head, effect, se, ci_low, ci_high, p_value."""
        columns = {
            "effect": self.scores,
            "se": self.errors,
            **dict(zip(("ci_low", "ci_high"), self.interval(), strict=True)),
            "p_value": self.p_values,
        }
        return tidy(("layer", "head"), columns)

    def plot(self) -> "go.Figure":
        """The heat map: layer by head."""
        from mechheads.reports.theme import heat_map

        return heat_map(self)

    def top(self, k: int = 10, *, signed: bool = False) -> "pd.DataFrame":
        """The rows of the k strongest heads, named L9H6."""
        if k < 0:
            raise MechheadsError(f"top takes 0 or more heads, got {k}.")
        best = self.ranking(signed=signed)[:k]
        frame = self.frame().set_index(["layer", "head"]).loc[best].reset_index()
        letter = "H" if self.unit == "head" else "KV"
        frame.insert(0, "name", [f"L{layer}{letter}{head}" for layer, head in best])
        return frame


@dataclass(frozen=True)
class PositionEffects:
    """How far each head moves the metric when it is changed at one position alone."""

    task: str
    model: str
    metric: str
    values: Float[Tensor, "prompt layer head pos"]
    clean: Float[Tensor, " prompt"]
    corrupt: Float[Tensor, " prompt"]
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def scores(self) -> Float[Tensor, "layer head pos"]:
        """Mean over prompts."""
        return self.values.mean(0)

    def frame(self) -> "pd.DataFrame":
        """A tidy frame: layer, head, position, effect, se, ci_low, ci_high, p_value."""
        columns = {
            "effect": self.scores,
            "se": statistics.standard_error(self.values),
            **dict(zip(("ci_low", "ci_high"), statistics.bootstrap(self.values), strict=True)),
            "p_value": statistics.p_values(self.values),
        }
        return tidy(("layer", "head", "position"), columns)


def tidy(names: Sequence[str], columns: Mapping[str, Tensor]) -> "pd.DataFrame":
    """One row per cell: its indices under `names`, and what each column says of it."""
    import pandas as pd

    shape = next(iter(columns.values())).shape
    places = torch.cartesian_prod(*(torch.arange(size) for size in shape))
    table = {name: places[:, i].numpy() for i, name in enumerate(names)}
    return pd.DataFrame(table | {key: value.flatten().numpy() for key, value in columns.items()})
