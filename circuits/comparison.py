"""Two models on the same tasks: how many heads, and how many attention edges, does each need?

The multiplier is N_standard / N_sparse, where N is the fewest top-ranked heads that reach the
threshold. Edges are counted per prompt over these N heads: query-key pairs with attention weight
above 0, so a dense head uses all of its causal edges. Intervals come from a bootstrap over prompts,
with the same draws for both models.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.errors import MechheadsError
from mechheads.runs.result import Result
from mechheads.scoring.statistics import ends, resample

from .circuit import Circuit
from .curve import Curve, needed
from .discovery import Discovery
from .search import check_search

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Ratio:
    """How much more the standard model needs, with an interval over prompts."""

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


@dataclass(frozen=True)
class ModelCurve:
    """One model's curve, and the edges that its first k heads use on each prompt."""

    curve: Curve
    edges: Float[Tensor, "k prompt"]


@dataclass(frozen=True)
class TaskComparison:
    """One task on both models."""

    task: str
    standard: ModelCurve
    sparse: ModelCurve
    heads: Ratio
    edges: Ratio
    jaccard: float
    warning: str = ""


@dataclass(frozen=True)
class Comparison(Result):
    """Both models on all tasks."""

    tasks: tuple[TaskComparison, ...]
    threshold: float

    @property
    def same_size(self) -> bool:
        """Whether both models have the same number of heads, so that counts are comparable."""
        return all(t.standard.edges.shape[0] == t.sparse.edges.shape[0] for t in self.tasks)

    @property
    def models(self) -> tuple[str, str]:
        """The names of both models."""
        return self.tasks[0].standard.curve.model, self.tasks[0].sparse.curve.model

    def frame(self) -> "pd.DataFrame":
        """A tidy frame: task, n_standard, n_sparse, multiplier, ci_low, ci_high."""
        return _frame("n", [(t.task, t.heads) for t in self.tasks]).astype(
            {"n_standard": int, "n_sparse": int}
        )

    def edge_frame(self) -> "pd.DataFrame":
        """The same for edges per prompt: task, edges_standard, edges_sparse, multiplier, ..."""
        return _frame("edges", [(t.task, t.edges) for t in self.tasks])

    @property
    def headline(self) -> dict[str, Any]:
        """The numbers for every task."""
        tasks = {t.task: {"heads": asdict(t.heads), "edges": asdict(t.edges)} for t in self.tasks}
        return {"parts": tasks}

    @property
    def warnings(self) -> tuple[str, ...]:
        """Tasks that a model cannot do."""
        return tuple(t.warning for t in self.tasks if t.warning)

    @property
    def text(self) -> str:
        """One line per task and ratio, then the sentence."""
        lines = []
        for t in self.tasks:
            for start, what, ratio in ((t.task, "heads", t.heads), ("", "edges", t.edges)):
                counts = f"{ratio.standard:.0f} and {ratio.sparse:.0f}"
                lines.append(f"{start:<16}{what} {counts}: {ratio.words}")
        return "\n".join([*lines, self.sentence])

    @property
    def sentence(self) -> str:
        """The result in words, whichever way it goes."""
        standard, sparse = self.models
        fewer = [t.task for t in self.tasks if t.heads.multiplier > 1]
        more = [t.task for t in self.tasks if t.heads.multiplier < 1]
        equal = [t.task for t in self.tasks if t.heads.multiplier == 1]
        sure = [t.task for t in self.tasks if t.heads.low > 1 or t.heads.high < 1]
        parts = [f"{sparse} needs fewer heads than {standard} on {', '.join(fewer) or 'no task'}"]
        parts += [f"more on {', '.join(more)}"] if more else []
        parts += [f"the same number on {', '.join(equal)}"] if equal else []
        return (
            f"To explain {self.threshold:.0%}, {'; '.join(parts)}. The 95 % interval excludes 1 "
            f"on {', '.join(sure) or 'no task'}."
        )


def compare(
    standard: Sequence[Discovery], sparse: Sequence[Discovery], threshold: float = 0.9
) -> Comparison:
    """Compare how many heads two models need for the same tasks.

    Args:
        standard: results of `circuits.discover` on one model, one Discovery per task
        sparse: the same tasks on the other model, in the same order
        threshold: share of the effect to explain

    Returns:
        Comparison: the heads and attention edges that each model needs per task, and the multiplier
        standard / sparse with its interval over prompts. Runs no model.

    >>> import circuits, mechheads, tasks
    >>> found = []
    >>> for name in ("mini", "mini-sparse"):
    ...     model = mechheads.load(name)
    ...     prompts = tasks.make("greater_than", model, n=32)
    ...     found.append(circuits.discover(model, prompts, method="attribution", quiet=True))
    >>> circuits.compare([found[0]], [found[1]]).models
    ('mini', 'mini-sparse')
    """
    check_search("top", threshold)
    for one, two in zip(standard, sparse, strict=True):
        for what, a, b in (
            ("task", one.curve.task, two.curve.task),
            ("metric", one.curve.metric, two.curve.metric),
            ("replacement", *(run.curve.settings["replacement"] for run in (one, two))),
        ):
            if a != b:
                raise MechheadsError(
                    f"One run has {what} {a}, the other {b}. Compare runs with the same {what}."
                )
    both = zip(standard, sparse, strict=True)
    return Comparison(tuple(_task(one, two, threshold) for one, two in both), threshold)


def _task(one: Discovery, two: Discovery, threshold: float) -> TaskComparison:
    sides = [ModelCurve(found.curve, _edges(found)) for found in (one, two)]
    counts = [side.curve.needed(threshold) for side in sides]
    drawn = [needed(side.curve.resampled(), threshold) for side in sides]
    edges = [float(side.edges[n].mean()) for side, n in zip(sides, counts, strict=True)]
    drawn_edges = [_drawn_edges(side, n) for side, n in zip(sides, drawn, strict=True)]
    circuits = [side.curve.circuit(n) for side, n in zip(sides, counts, strict=True)]
    return TaskComparison(
        one.curve.task,
        sides[0],
        sides[1],
        _ratio([float(n) for n in counts], drawn),
        _ratio(edges, drawn_edges),
        Circuit.jaccard(circuits[0], circuits[1]),
        " ".join([*one.warnings, *two.warnings]),
    )


def _edges(found: Discovery) -> Float[Tensor, "k prompt"]:
    """Edges used by the first k heads of the ranking on each prompt."""
    used = [found.edges.used[:, layer, head] for layer, head in found.curve.ranking]
    none = torch.zeros_like(used[0])
    return torch.stack([none, *used]).cumsum(0).float()


def _drawn_edges(side: ModelCurve, counts: Float[Tensor, " draw"]) -> Float[Tensor, " draw"]:
    """Edges per prompt used by the heads that each bootstrap draw needs."""
    n = side.edges.shape[1]
    means = resample(n) @ side.edges.T / n
    found = means.gather(1, counts.nan_to_num().long()[:, None])[:, 0]
    return found.where(counts.isfinite(), torch.nan)


def _ratio(values: Sequence[float], draws: Sequence[Float[Tensor, " draw"]]) -> Ratio:
    found = draws[0] / draws[1].where(draws[1] > 0, torch.nan)
    low, high = ends(found)
    whole = values[0] / values[1] if values[1] else float("nan")
    return Ratio(values[0], values[1], whole, float(low), float(high))


def _frame(what: str, rows: Sequence[tuple[str, Ratio]]) -> "pd.DataFrame":
    import pandas as pd

    names = ["task", f"{what}_standard", f"{what}_sparse", "multiplier", "ci_low", "ci_high"]
    return pd.DataFrame(
        [(task, r.standard, r.sparse, r.multiplier, r.low, r.high) for task, r in rows],
        columns=pd.Index(names),
    )
