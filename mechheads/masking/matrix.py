"""Whose heads does a function need? One function's heads are masked, another is tested.

The hierarchy test is a part of it: low-order functions' heads masked, high-order ones tested. If
the low ones feed the high ones, these fall by more than with as many random heads.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from ..generation import answer
from ..models import Model
from ..prompts import Questions
from ..storage import load_result, save_result
from .experiment import mask_of
from .quality import Quality
from .selection import Head, random_heads

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go


@dataclass(frozen=True)
class Matrix:
    """The metric of every function (column) without the k first heads of another (row).

    `whole` is the metric of the unmasked model, `random` that without k random heads, none of which
    is among the row's own, mean over draws.
    """

    masked: tuple[str, ...]
    tested: tuple[str, ...]
    k: int
    metric: str
    label: str
    values: Float[Tensor, "masked tested"]
    random: Float[Tensor, "masked tested"]
    whole: Float[Tensor, " tested"]

    def part(self, masked: Sequence[str], tested: Sequence[str]) -> "Matrix | None":
        """Some rows and columns; None if none are there."""
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
        )

    def frame(self) -> "pd.DataFrame":
        """A tidy frame: masked, tested, k, metric, whole, value, random."""
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
            )
            for i, masked in enumerate(self.masked)
            for j, tested in enumerate(self.tested)
        ]
        columns = ["masked", "tested", "k", "metric", "whole", "value", "random"]
        return pd.DataFrame(rows, columns=pd.Index(columns))

    def plot(self) -> "go.Figure":
        """A heat map of what is lost beyond random heads."""
        from .figures import draw_matrix

        return draw_matrix(self)

    def save(self, file: Path) -> Path:
        """Write it whole, as safetensors."""
        return save_result(self, file)

    @classmethod
    def load(cls, file: Path) -> "Matrix":
        """Read what `save` wrote."""
        return load_result(cls, file)


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
    """Mask the first k heads of every function's ranking and test every function."""
    names = [questions.name for questions in sets]
    masks = [mask_of(model, (), scale)]
    for name in names:
        masks.append(mask_of(model, rankings[name][:k], scale))
        masks += [
            mask_of(model, heads, scale) for heads in random_heads(rankings[name], k, draws, seed)
        ]
    columns = []
    for questions in sets:
        gold = [q.answers for q in questions.items]
        said = answer(
            model,
            [q.prompt for q in questions.items],
            torch.stack(masks),
            positions=positions,
            max_tokens=max_tokens,
            budget=budget,
            quiet=quiet,
        )
        judged = [torch.tensor(quality.judge(texts, gold, said[0])).mean() for texts in said]
        columns.append(torch.stack(judged))
    values = torch.stack(columns, dim=1)
    blocks = values[1:].unflatten(0, (len(names), 1 + draws))
    return Matrix(
        tuple(names),
        tuple(names),
        k,
        quality.name,
        quality.label,
        blocks[:, 0],
        blocks[:, 1:].mean(1),
        values[0],
    )
