"""Whose heads does a function need? One function's heads are masked, another is tested.

This includes the hierarchy test: mask low-order functions' heads and test high-order functions, and
vice versa. If low-order functions feed high-order ones, the former loses more beyond random heads.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.metrics.text import Quality
from mechheads.models.model import Model
from mechheads.progress import stages
from mechheads.prompts import Questions
from mechheads.runs.result import Result
from mechheads.scoring.statistics import ends, resample

from .answers import Condition, answer_conditions, interval, random_conditions
from .selection import NONE, TOP, Head, random_heads

if TYPE_CHECKING:
    import pandas as pd


# How CogQA orders its functions.
LOW_ORDER = ("Retrieval", "Knowledge Recall", "Semantic Understanding", "Syntactic Understanding")
HIGH_ORDER = ("Math Calculation", "Inference", "Logical Reasoning", "Decision-making")


@dataclass(frozen=True)
class Matrix(Result):
    """The metric of every function (column) without the first k heads of another (row).

    `whole` is the metric of the unmasked model, `random` the metric without k random heads, mean
    over draws; these exclude the row's heads and, if enough remain, the column's. `lost` is what
    each question of a column loses beyond random heads.
    """

    masked: tuple[str, ...]
    tested: tuple[str, ...]
    k: int
    metric: str
    label: str
    values: Float[Tensor, "masked tested"]
    random: Float[Tensor, "masked tested"]
    whole: Float[Tensor, " tested"]
    lost: Mapping[str, Float[Tensor, "masked prompt"]]

    def part(self, masked: Sequence[str], tested: Sequence[str]) -> "Matrix | None":
        """Some of the rows and columns; None if there are none."""
        rows = [i for i, name in enumerate(self.masked) if name in masked]
        columns = [i for i, name in enumerate(self.tested) if name in tested]
        if not rows or not columns:
            return None
        return Matrix(
            tuple(self.masked[i] for i in rows),
            tuple(self.tested[i] for i in columns),
            self.k,
            self.metric,
            self.label,
            self.values[rows][:, columns],
            self.random[rows][:, columns],
            self.whole[columns],
            {self.tested[j]: self.lost[self.tested[j]][rows] for j in columns},
        )

    def resampled(self) -> Float[Tensor, " draw"]:
        """The mean of `lost` over all cells, with the questions of each column resampled."""
        means = []
        for seed, lost in enumerate(self.lost.values()):
            times = resample(lost.shape[1], seed).to(lost.dtype)
            means.append(times @ lost.mean(0) / lost.shape[1])
        return torch.stack(means).mean(0)

    def frame(self) -> "pd.DataFrame":
        """A tidy frame: masked, tested, k, metric, whole, value, random, lost, low, high."""
        import pandas as pd

        rows = [
            (
                masked,
                tested,
                self.k,
                self.metric,
                self.whole[j].item(),
                self.values[i, j].item(),
                self.random[i, j].item(),
                self.lost[tested][i].mean().item(),
                *interval(self.lost[tested][i]),
            )
            for i, masked in enumerate(self.masked)
            for j, tested in enumerate(self.tested)
        ]
        columns = ["masked", "tested", "k", "metric", "whole", "value", "random"]
        columns += ["lost", "low", "high"]
        return pd.DataFrame(rows, columns=pd.Index(columns))

    @property
    def headline(self) -> dict[str, Any]:
        """What every function loses beyond random heads, mean over the masked functions."""
        return {name: self.lost[name].mean().item() for name in self.tested}

    @property
    def sentence(self) -> str:
        """The same in words."""
        listed = ", ".join(f"{name} {lost:.2f}" for name, lost in self.headline.items())
        return f"{self.label} lost beyond random heads, {self.k} masked: {listed}."

    def orders(self) -> "tuple[Matrix, Matrix] | None":
        """Low-order heads masked and high-order functions tested, and vice versa."""
        up, down = self.part(LOW_ORDER, HIGH_ORDER), self.part(HIGH_ORDER, LOW_ORDER)
        return (up, down) if up and down else None


@dataclass(frozen=True)
class Hierarchy:
    """The hierarchy test: mean, low and high of what is lost beyond random heads.

    `up` is what high-order functions lose without low-order heads, `down` what low-order ones lose
    without high-order heads.
    """

    up: tuple[float, float, float]
    down: tuple[float, float, float]
    difference: tuple[float, float, float]

    @property
    def sentence(self) -> str:
        """For the report."""
        up, down, difference = (
            f"{mean:.2f} ({low:.2f} to {high:.2f})"
            for mean, low, high in (self.up, self.down, self.difference)
        )
        return (
            f"Without low-order heads, high-order functions lose {up} beyond random heads; without "
            f"high-order heads, low-order functions lose {down}; the difference is {difference}. "
            "95% intervals over questions."
        )


def compare_orders(up: Matrix, down: Matrix) -> Hierarchy:
    """Both directions of the hierarchy, with bootstrap intervals over each function's questions."""
    means = [
        torch.stack([lost.mean() for lost in part.lost.values()]).mean() for part in (up, down)
    ]
    draws = up.resampled(), down.resampled()
    return Hierarchy(
        _with_interval(means[0], draws[0]),
        _with_interval(means[1], draws[1]),
        _with_interval(means[0] - means[1], draws[0] - draws[1]),
    )


def _with_interval(mean: Tensor, draws: Float[Tensor, " draw"]) -> tuple[float, float, float]:
    low, high = ends(draws)
    return mean.item(), low.item(), high.item()


def cross_mask(
    model: Model,
    sets: Sequence[Questions],
    rankings: Mapping[str, Sequence[Head]],
    k: int,
    quality: Quality,
    *,
    draws: int = 3,
    seed: int = 0,
    positions: str = "last",
    scale: float = 0.0,
    max_tokens: int = 32,
    budget: int | None = None,
    quiet: bool = False,
) -> Matrix:
    """Mask the first k heads of every function, or k random ones, and test every function."""
    names = tuple(questions.name for questions in sets)
    whole, values, drawn, lost = [], [], [], {}
    common: dict[str, Any] = {"positions": positions, "scale": scale, "max_tokens": max_tokens}
    common |= {"budget": budget, "quiet": quiet}
    with stages(
        "matrix", {questions.name: len(questions) for questions in sets}, quiet
    ) as progress:
        for questions in sets:
            conditions, sizes = [Condition(NONE, 0, 0, ())], [1]
            for name in names:
                others = random_heads(
                    rankings[name], k, draws, seed, spared=rankings[questions.name][:k]
                )
                conditions.append(Condition(TOP, k, 0, tuple(rankings[name][:k])))
                conditions += random_conditions(others)
                sizes += [1, len(others)]
            with progress.stage(questions.name):
                answers = answer_conditions(model, questions, conditions, [quality], **common)
            judged = [part.mean(0) for part in answers.values[:, 0].split(sizes)]
            top, random = torch.stack(judged[1::2]), torch.stack(judged[2::2])
            whole.append(judged[0].mean())
            values.append(top.mean(1))
            drawn.append(random.mean(1))
            lost[questions.name] = random - top
    return Matrix(
        names,
        names,
        k,
        quality.name,
        quality.label,
        torch.stack(values, dim=1),
        torch.stack(drawn, dim=1),
        torch.stack(whole),
        lost,
    )
