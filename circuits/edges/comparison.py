"""Two models on the same tasks: how many edges does each need?

The multiplier is N of the first model / N of the second, where N is the fewest edges of the ranking
that reach the threshold. Circuit edges lead from head to head, to MLPs and to the logits, as in
ACDC and MIB. Attention edges, the query-key pairs that heads attend along, are counted by `compare`
(circuits/comparison.py). Intervals come from a bootstrap over prompts, with the same
draws for both models.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from circuits.comparison import (
    by_difference,
    different_runs,
    different_thresholds,
    in_pairs,
    refuse,
)
from circuits.ratios import Ratio, labels_of, names_of, ratio, ratio_frame, which_needs_fewer
from circuits.search import check_search
from mechheads.runs.result import Result

from .curve import EdgeCurve
from .discovery import EdgeDiscovery

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class EdgeTask:
    """One task on both models; `gated` says which of them is sparse."""

    standard: EdgeCurve
    sparse: EdgeCurve
    gated: tuple[bool, bool]
    edges: Ratio
    warning: str = ""

    @property
    def task(self) -> str:
        """The task."""
        return self.standard.task


@dataclass(frozen=True)
class EdgeComparison(Result):
    """Both models on all tasks; `differences` between their runs are among the warnings.

    `standard` and `sparse` are the first and the second model, whatever they are; `labels` is what
    tables and figures call them.
    """

    tasks: tuple[EdgeTask, ...]
    threshold: float
    differences: tuple[str, ...] = ()

    @property
    def labels(self) -> tuple[str, str]:
        """Standard and sparse if one model is sparse; else their names, or A and B if equal."""
        first = self.tasks[0]
        return labels_of((first.standard.model, first.sparse.model), first.gated)

    @property
    def names(self) -> tuple[str, str]:
        """The names of both models in a sentence, with their labels if they are equal."""
        first = self.tasks[0]
        return names_of((first.standard.model, first.sparse.model), self.labels)

    @property
    def unused(self) -> tuple[str, ...]:
        """Settings of circuits of heads."""
        return ("method",)

    def frame(self) -> "pd.DataFrame":
        """A tidy frame: task, n_standard, n_sparse (circuit edges), multiplier, ci_low, ci_high.

        The columns of counts are named by `labels`.
        """
        frame = ratio_frame("n", self.labels, [(t.task, t.edges) for t in self.tasks])
        return frame.astype({f"n_{label}": int for label in self.labels})

    @property
    def headline(self) -> dict[str, Any]:
        """The numbers for every task."""
        return {"parts": {t.task: {"circuit_edges": asdict(t.edges)} for t in self.tasks}}

    @property
    def warnings(self) -> tuple[str, ...]:
        """Tasks that a model cannot do, and how the runs differ."""
        return *(t.warning for t in self.tasks if t.warning), *self.differences

    @property
    def text(self) -> str:
        """One line per task, then the sentence."""
        lines = []
        for t in self.tasks:
            counts = f"{t.edges.standard:,.0f} and {t.edges.sparse:,.0f}"
            lines.append(f"{t.task:<16}circuit edges {counts}: {t.edges.words}")
        return "\n".join([*lines, self.sentence])

    @property
    def sentence(self) -> str:
        """The result in words, whichever way it goes."""
        ratios = {t.task: t.edges for t in self.tasks}
        return which_needs_fewer(self.names, ratios, "circuit edges", self.threshold)


def compare_edges(
    standard: EdgeDiscovery | Sequence[EdgeDiscovery],
    sparse: EdgeDiscovery | Sequence[EdgeDiscovery],
    threshold: float = 0.9,
) -> EdgeComparison:
    """Compare how many circuit edges two models need for the same tasks.

    Args:
        standard: results of `circuits.discover_edges` on one model, one per task, or a single one
        sparse: the same tasks on the other model, in the same order
        threshold: share of the effect to explain; exact if the runs had this threshold, else from
            linear f between measured numbers of edges

    Returns:
        EdgeComparison: the edges that each model needs per task, and the multiplier standard /
        sparse with its interval over prompts; `warnings` says how the runs differ. Runs no model.

    >>> import circuits, mechheads, tasks
    >>> found = []
    >>> for name in ("mini", "mini-sparse"):
    ...     model = mechheads.load(name)
    ...     prompts = tasks.make("greater_than", model, n=16)
    ...     found.append(circuits.discover_edges(model, prompts, draws=2, points=9, quiet=True))
    >>> circuits.compare_edges(found[0], found[1]).labels
    ('standard', 'sparse')
    """
    check_search("top", threshold)
    pairs = in_pairs(standard, sparse, EdgeDiscovery)
    for one, two in pairs:
        refuse(one.curve, two.curve)
    found = EdgeComparison(tuple(_task(one, two, threshold) for one, two in pairs), threshold)
    words = [
        (one.curve.task, [*_differences(one, two, found.names, threshold)]) for one, two in pairs
    ]
    return replace(found, differences=by_difference(words))


def _task(one: EdgeDiscovery, two: EdgeDiscovery, threshold: float) -> EdgeTask:
    curves = one.curve, two.curve
    return EdgeTask(
        *curves,
        (one.sparse, two.sparse),
        ratio(
            [float(curve.needed(threshold)) for curve in curves],
            [curve.needed_draws(threshold) for curve in curves],
        ),
        " ".join([*one.warnings, *two.warnings]),
    )


def _differences(
    one: EdgeDiscovery, two: EdgeDiscovery, names: tuple[str, str], threshold: float
) -> Iterator[str]:
    """How the runs differ, other than in the model, and what this means for the ratio."""
    ranked = [run.ranked_on for run in (one, two)]
    judged = [run.curve.values.shape[1] for run in (one, two)]
    a, b = ((run.effects.settings["steps"], run.curve.settings["signed"]) for run in (one, two))
    if a != b:
        yield (
            f"the edges of {names[0]} and {names[1]} were ranked differently (steps {a[0]} and "
            f"{b[0]}, signed {a[1]} and {b[1]}), so the ratio also compares the rankings."
        )
    yield from different_runs("edges", names, ranked, judged, (one.judged_on, two.judged_on))
    yield from different_thresholds(names, (one.threshold, two.threshold), threshold)
