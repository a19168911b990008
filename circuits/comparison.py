"""Two models on the same tasks: how many heads, and how many attention edges, does each need?

The multiplier is N_standard / N_sparse, N the fewest heads of the ranking that reach the threshold.
Its interval comes from drawing the prompts again, the same draws for both models where they have
the same prompts. Edges are those that the heads of that circuit use on a prompt: query and key with
a weight above 0, so that a dense head uses all of its causal edges.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from mechheads.errors import MechheadsError

from .curve import Curve, needed
from .discovery import Discovery

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go


@dataclass(frozen=True)
class TaskComparison:
    """One task on both models."""

    task: str
    standard: Curve
    sparse: Curve
    n_standard: int
    n_sparse: int
    multiplier: float
    low: float
    high: float
    edges_standard: float
    edges_sparse: float
    jaccard: float
    warning: str = ""

    @property
    def words(self) -> str:
        """The numbers for a title."""
        return (
            f"{self.n_standard} and {self.n_sparse} heads: {self.multiplier:.2g}x "
            f"({self.low:.2g} to {self.high:.2g})"
        )


@dataclass(frozen=True)
class Comparison:
    """Both models on all tasks."""

    tasks: tuple[TaskComparison, ...]
    threshold: float

    @property
    def same_size(self) -> bool:
        """Whether both models have as many heads, so that counts compare."""
        return all(len(t.standard.ranking) == len(t.sparse.ranking) for t in self.tasks)

    def frame(self) -> "pd.DataFrame":
        """A tidy frame: task, n_standard, n_sparse, multiplier, ci_low, ci_high."""
        import pandas as pd

        names = ["task", "n_standard", "n_sparse", "multiplier", "ci_low", "ci_high"]
        rows = [(t.task, t.n_standard, t.n_sparse, t.multiplier, t.low, t.high) for t in self.tasks]
        return pd.DataFrame(rows, columns=pd.Index(names))

    def edge_frame(self) -> "pd.DataFrame":
        """A tidy frame of edges per prompt in the circuits: task, standard, sparse, multiplier."""
        import pandas as pd

        names = ["task", "edges_standard", "edges_sparse", "multiplier"]
        rows = [
            (t.task, t.edges_standard, t.edges_sparse, ratio(t.edges_standard, t.edges_sparse))
            for t in self.tasks
        ]
        return pd.DataFrame(rows, columns=pd.Index(names))

    def plot(self) -> "go.Figure":
        """One panel per task."""
        from .figures import draw_comparison

        return draw_comparison(self)

    @property
    def sentence(self) -> str:
        """The result in words, whichever way it goes."""
        first = self.tasks[0]
        fewer = [t.task for t in self.tasks if t.multiplier > 1]
        more = [t.task for t in self.tasks if t.multiplier < 1]
        parts = [
            f"{first.sparse.model} needs fewer heads than {first.standard.model} on "
            f"{', '.join(fewer)}"
            if fewer
            else f"{first.sparse.model} needs fewer heads than {first.standard.model} on no task"
        ]
        if more:
            parts.append(f"more on {', '.join(more)}")
        equal = [t.task for t in self.tasks if t.multiplier == 1]
        if equal:
            parts.append(f"as many on {', '.join(equal)}")
        sure = [t.task for t in self.tasks if t.low > 1 or t.high < 1]
        return (
            f"To explain {self.threshold:.0%}, {'; '.join(parts)}. The 95 % interval leaves out 1 "
            f"on {', '.join(sure) if sure else 'no task'}."
        )


def compare(
    standard: Sequence[Discovery], sparse: Sequence[Discovery], threshold: float = 0.9
) -> Comparison:
    """Discoveries of the same tasks on two models, in the same order."""
    rows = []
    for one, two in zip(standard, sparse, strict=True):
        if one.curve.task != two.curve.task:
            raise MechheadsError(
                f"One run is of task {one.curve.task}, the other of {two.curve.task}."
            )
        rows.append(_task(one, two, threshold))
    return Comparison(tuple(rows), threshold)


def ratio(standard: float | int, sparse: float | int) -> float:
    """standard / sparse; not a number if nothing is left."""
    return standard / sparse if sparse else float("nan")


def _task(one: Discovery, two: Discovery, threshold: float) -> TaskComparison:
    n_one, n_two = (found.curve.needed(threshold) for found in (one, two))
    draws = [needed(found.curve.resampled(), threshold) for found in (one, two)]
    found = draws[0] / draws[1].clamp(min=1)
    low, high = torch.quantile(found, torch.tensor([0.025, 0.975])).tolist()
    heads = [found.curve.ranking[:n] for found, n in ((one, n_one), (two, n_two))]
    edges = [
        sum(float(found.edges.used[:, layer, head].float().mean()) for layer, head in kept)
        for found, kept in zip((one, two), heads, strict=True)
    ]
    either = set(heads[0]) | set(heads[1])
    return TaskComparison(
        one.curve.task,
        one.curve,
        two.curve,
        n_one,
        n_two,
        ratio(n_one, n_two),
        low,
        high,
        edges[0],
        edges[1],
        len(set(heads[0]) & set(heads[1])) / len(either) if either else 1.0,
        " ".join(filter(None, (f.evaluation.warning for f in (one, two)))),
    )
