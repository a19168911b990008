"""How much more one model needs than another: ratios with intervals, in tables and in words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.scoring.statistics import ends

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Ratio:
    """How much more the first model needs, with an interval over prompts."""

    NOT_FINITE: ClassVar = ("multiplier", "low", "high")

    standard: float
    sparse: float
    multiplier: float
    low: float
    high: float

    @property
    def words(self) -> str:
        """144x (97.5 to 180)."""
        return f"{self.multiplier:.3g}x ({self.low:.3g} to {self.high:.3g})"


def ratio(values: Sequence[float], draws: Sequence[Float[Tensor, " draw"]]) -> Ratio:
    """The ratio of what both models need, and its interval over the draws they share."""
    found = draws[0] / draws[1].where(draws[1] > 0, torch.nan)
    low, high = ends(found)
    whole = values[0] / values[1] if values[1] else float("nan")
    return Ratio(values[0], values[1], whole, float(low), float(high))


def ratio_frame(
    what: str, labels: tuple[str, str], rows: Sequence[tuple[str, Ratio]]
) -> "pd.DataFrame":
    """A tidy frame: task, both counts, multiplier, ci_low, ci_high."""
    import pandas as pd

    counts = [f"{what}_{label}" for label in labels]
    names = ["task", *counts, "multiplier", "ci_low", "ci_high"]
    return pd.DataFrame(
        [(task, r.standard, r.sparse, r.multiplier, r.low, r.high) for task, r in rows],
        columns=pd.Index(names),
    )


def labels_of(models: tuple[str, str], sparse: tuple[bool, bool]) -> tuple[str, str]:
    """Standard and sparse if one model is sparse; else their names, or A and B if equal."""
    if sparse[0] != sparse[1]:
        return ("sparse", "standard") if sparse[0] else ("standard", "sparse")
    return models if models[0] != models[1] else ("A", "B")


def names_of(models: tuple[str, str], labels: tuple[str, str]) -> tuple[str, str]:
    """The names of both models in a sentence, with their labels if they are equal."""
    one, two = models
    if one != two:
        return one, two
    return f"{one} ({labels[0]})", f"{two} ({labels[1]})"


def which_needs_fewer(
    names: tuple[str, str], ratios: Mapping[str, Ratio], unit: str, threshold: float
) -> str:
    """On which tasks the second model needs fewer heads or edges than the first, in words."""
    first, second = names
    fewer = [task for task, ratio in ratios.items() if ratio.multiplier > 1]
    more = [task for task, ratio in ratios.items() if ratio.multiplier < 1]
    equal = [task for task, ratio in ratios.items() if ratio.multiplier == 1]
    sure = [task for task, ratio in ratios.items() if ratio.low > 1 or ratio.high < 1]
    parts = [f"{second} needs fewer {unit} than {first} on {', '.join(fewer) or 'no task'}"]
    parts += [f"more on {', '.join(more)}"] if more else []
    parts += [f"the same number on {', '.join(equal)}"] if equal else []
    return (
        f"To explain {threshold:.0%}, {'; '.join(parts)}. The 95% interval excludes 1 "
        f"on {', '.join(sure) or 'no task'}."
    )
