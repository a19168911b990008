"""What every scoring method returns: how far each head moves the metric, prompt by prompt."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads import metrics
from mechheads.errors import MechheadsError
from mechheads.heads import name_of
from mechheads.runs.frames import tidy
from mechheads.runs.result import Result

from . import statistics

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class HeadEffects(Result):
    """How far each head moves the metric on each prompt; positive means that the head helps.

    `clean` and `corrupt` are the metric of the unchanged runs. `settings` are the method's own
    options, `notes` its other findings. `unit` is what a column stands for: a head, or a key-value
    head where several heads share one. If a method fits something with several seeds, `over` is
    "seeds": a row of `values` is then a seed, and `quantity` names what is measured per head
    instead of a change of the metric.
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

    def check(self) -> None:
        """Raise a ValueError if stored effects cannot be ours."""
        metrics.find(self.metric)
        if self.unit not in ("head", "kv_head") or self.over not in ("prompts", "seeds"):
            raise ValueError(f"it has effects of {self.unit[:40]} over {self.over[:40]}")

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
        """p-values, corrected for the number of heads (Benjamini and Hochberg)."""
        return statistics.p_values(self.values)

    def interval(
        self, level: float = 0.95, seed: int = 0
    ) -> tuple[Float[Tensor, "layer head"], Float[Tensor, "layer head"]]:
        """Bootstrap interval of the mean, over prompts."""
        return statistics.bootstrap(self.values, level, seed)

    @property
    def total(self) -> float:
        """Clean minus corrupted metric: what all heads together can explain."""
        return (self.clean.mean() - self.corrupt.mean()).item()

    def ranking(self, *, signed: bool = False) -> list[tuple[int, int]]:
        """(layer, head) from the strongest effect to the weakest, by absolute or signed value."""
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

    @property
    def headline(self) -> dict[str, Any]:
        """The strongest head, and how many heads have an effect."""
        layer, head = self.ranking()[0]
        return {
            "strongest": f"L{layer}{self.letter}{head}",
            "effect": float(self.scores[layer, head]),
            "significant": int((self.p_values < 0.05).sum()),
            "total": self.total,
        }

    @property
    def sentence(self) -> str:
        """The headline as a sentence."""
        found = self.headline
        return (
            f"{self.task} on {self.model}, {self.method}: the strongest {self.unit} is "
            f"{found['strongest']} ({found['effect']:+.3f}); {found['significant']} of "
            f"{self.scores.numel()} have an effect (corrected p < 0.05)."
        )

    @property
    def letter(self) -> str:
        """H in L9H6; KV where a column stands for a key-value head."""
        return "H" if self.unit == "head" else "KV"

    def top(self, k: int = 10, *, signed: bool = False) -> "pd.DataFrame":
        """The rows of the k strongest heads, with names like L9H6."""
        if k < 0:
            raise MechheadsError(f"top takes 0 or more heads, got {k}.")
        best = self.ranking(signed=signed)[:k]
        frame = self.frame().set_index(["layer", "head"]).loc[best].reset_index()
        frame.insert(0, "name", [f"L{layer}{self.letter}{head}" for layer, head in best])
        return frame


@dataclass(frozen=True)
class PositionEffects(Result):
    """How far each head moves the metric when patched at a single position."""

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

    @property
    def strongest(self) -> tuple[int, int, int]:
        """Layer, head and position of the largest absolute effect."""
        flat = int(self.scores.abs().argmax())
        layer, rest = divmod(flat, self.scores[0].numel())
        return layer, *divmod(rest, self.scores.shape[2])

    @property
    def headline(self) -> dict[str, Any]:
        """The head and position that matter most."""
        layer, head, position = self.strongest
        effect = float(self.scores[layer, head, position])
        return {"strongest": name_of(layer, head), "position": position, "effect": effect}

    @property
    def sentence(self) -> str:
        """The headline as a sentence."""
        found = self.headline
        return (
            f"{self.task} on {self.model}: the largest effect is {found['effect']:+.3f}, from "
            f"{found['strongest']} at position {found['position']}."
        )

    def frame(self) -> "pd.DataFrame":
        """A tidy frame: layer, head, position, effect, se, ci_low, ci_high, p_value."""
        columns = {
            "effect": self.scores,
            "se": statistics.standard_error(self.values),
            **dict(zip(("ci_low", "ci_high"), statistics.bootstrap(self.values), strict=True)),
            "p_value": statistics.p_values(self.values),
        }
        return tidy(("layer", "head", "position"), columns)
