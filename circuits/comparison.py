"""Two models on the same tasks: how many heads, and how many attention edges, does each need?

The multiplier is N of the first model / N of the second, where N is the fewest top-ranked heads
that reach the threshold. Edges are counted per prompt over these N heads: query-key pairs with
attention weight above 0, so a dense head uses all of its causal edges. Intervals come from a
bootstrap over prompts, with the same draws for both models.

Runs that measure different things (task, metric, replacement) are refused; runs that differ in
other ways (method, prompts, sample size) are compared with a warning. The circuits' overlap is
computed only if both models have the same architecture.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.errors import MechheadsError
from mechheads.runs.result import Result
from mechheads.scoring.statistics import resample

from .circuit import Circuit
from .curve import Curve
from .discovery import Discovery
from .measured import MeasuredCurve
from .ratios import Ratio, labels_of, names_of, ratio, ratio_frame, which_needs_fewer
from .search import check_search

if TYPE_CHECKING:
    import pandas as pd


R = TypeVar("R", bound=Result)


@dataclass(frozen=True)
class ModelCurve:
    """One model's curve, and the edges that its first k heads use on each prompt."""

    curve: Curve
    edges: Float[Tensor, "k prompt"]
    sparse: bool = False


@dataclass(frozen=True)
class TaskComparison:
    """One task on both models; `jaccard` is None if their heads do not correspond."""

    task: str
    standard: ModelCurve
    sparse: ModelCurve
    heads: Ratio
    edges: Ratio
    jaccard: float | None
    warning: str = ""


@dataclass(frozen=True)
class Comparison(Result):
    """Both models on all tasks; `differences` between their runs are among the warnings.

    `standard` and `sparse` are the first and the second model, whatever they are; `labels` is what
    tables and figures call them.
    """

    tasks: tuple[TaskComparison, ...]
    threshold: float
    differences: tuple[str, ...] = ()

    @property
    def same_size(self) -> bool:
        """Whether both models have the same number of heads, so that counts are comparable."""
        return all(t.standard.edges.shape[0] == t.sparse.edges.shape[0] for t in self.tasks)

    @property
    def models(self) -> tuple[str, str]:
        """The names of both models."""
        return self.tasks[0].standard.curve.model, self.tasks[0].sparse.curve.model

    @property
    def labels(self) -> tuple[str, str]:
        """Standard and sparse if one model is sparse; else their names, or A and B if equal."""
        first = self.tasks[0]
        return labels_of(self.models, (first.standard.sparse, first.sparse.sparse))

    @property
    def names(self) -> tuple[str, str]:
        """The names of both models in a sentence, with their labels if they are equal."""
        return names_of(self.models, self.labels)

    def frame(self) -> "pd.DataFrame":
        """A tidy frame: task, n_standard, n_sparse, multiplier, ci_low, ci_high.

        The columns of counts are named by `labels`.
        """
        frame = ratio_frame("n", self.labels, [(t.task, t.heads) for t in self.tasks])
        return frame.astype({f"n_{label}": int for label in self.labels})

    def edge_frame(self) -> "pd.DataFrame":
        """The same for edges per prompt: task, edges_standard, edges_sparse, multiplier, ..."""
        return ratio_frame("edges", self.labels, [(t.task, t.edges) for t in self.tasks])

    @property
    def headline(self) -> dict[str, Any]:
        """The numbers for every task."""
        tasks = {t.task: {"heads": asdict(t.heads), "edges": asdict(t.edges)} for t in self.tasks}
        return {"parts": tasks}

    @property
    def warnings(self) -> tuple[str, ...]:
        """Tasks that a model cannot do, and how the runs differ."""
        return *(t.warning for t in self.tasks if t.warning), *self.differences

    @property
    def text(self) -> str:
        """One line per task and ratio, then the sentence."""
        lines = []
        for t in self.tasks:
            rows = (t.task, "heads", t.heads), ("", "attention edges", t.edges)
            for start, what, found in rows:
                counts = f"{found.standard:.0f} and {found.sparse:.0f}"
                lines.append(f"{start:<16}{what} {counts}: {found.words}")
        return "\n".join([*lines, self.sentence])

    @property
    def sentence(self) -> str:
        """The result in words, whichever way it goes."""
        ratios = {t.task: t.heads for t in self.tasks}
        return which_needs_fewer(self.names, ratios, "heads", self.threshold)


def compare(
    standard: Discovery | Sequence[Discovery],
    sparse: Discovery | Sequence[Discovery],
    threshold: float = 0.9,
) -> Comparison:
    """Compare how many heads two models need for the same tasks.

    Args:
        standard: results of `circuits.discover` on one model, one per task, or a single one
        sparse: the same tasks on the other model, in the same order
        threshold: share of the effect to explain, whatever the threshold of the runs

    Returns:
        Comparison: the heads and attention edges that each model needs per task, and the multiplier
        standard / sparse with its interval over prompts; `warnings` says how the runs differ. Runs
        no model.

    >>> import circuits, mechheads, tasks
    >>> found = []
    >>> for name in ("mini", "mini-sparse"):
    ...     model = mechheads.load(name)
    ...     prompts = tasks.make("greater_than", model, n=32)
    ...     found.append(circuits.discover(model, prompts, method="attribution", quiet=True))
    >>> circuits.compare(found[0], found[1]).models
    ('mini', 'mini-sparse')
    """
    check_search("top", threshold)
    pairs = in_pairs(standard, sparse, Discovery)
    for one, two in pairs:
        refuse(one.curve, two.curve)
    found = Comparison(tuple(_task(one, two, threshold) for one, two in pairs), threshold)
    words = [
        (one.curve.task, [*_differences(one, two, found.names, threshold)]) for one, two in pairs
    ]
    return replace(found, differences=by_difference(words))


def by_difference(words: Sequence[tuple[str, Sequence[str]]]) -> tuple[str, ...]:
    """Each difference once, after the names of the tasks that have it."""
    tasks: dict[str, list[str]] = {}
    for task, differences in words:
        for difference in differences:
            tasks.setdefault(difference, []).append(task)
    return tuple(f"{', '.join(names)}: {difference}" for difference, names in tasks.items())


def in_pairs(
    standard: R | Sequence[R], sparse: R | Sequence[R], kind: type[R]
) -> list[tuple[R, R]]:
    """The runs of both models, task by task; each side is one run or several."""
    sides: list[list[R]] = []
    for given in (standard, sparse):
        runs: Any = [given] if isinstance(given, Result) else list(given)
        for one in runs:
            if not isinstance(one, kind):
                raise MechheadsError(
                    f"compare takes what circuits.discover returns, got {type(one).__name__}."
                )
        sides.append(runs)
    if not sides[0] or len(sides[0]) != len(sides[1]):
        raise MechheadsError(
            f"There are {len(sides[0])} runs of one model and {len(sides[1])} of the other. Give "
            "one run per task of each, in the same order."
        )
    return list(zip(*sides, strict=True))


def refuse(one: MeasuredCurve, two: MeasuredCurve) -> None:
    """Raise an error if the runs measure different things: a ratio would mean nothing."""
    task, other = one.task, two.task
    if task != other:
        raise MechheadsError(
            f"One run has task {task}, the other {other}. Compare runs of the same task."
        )
    for what, a, b in (
        ("metric", one.metric, two.metric),
        ("replacement", *(curve.settings["replacement"] for curve in (one, two))),
    ):
        if a != b:
            raise MechheadsError(
                f"{task}: one run has {what} {a}, the other {b}, so their ratio means nothing. Run "
                f"discover again with the same --{what}."
            )


def _differences(
    one: Discovery, two: Discovery, names: tuple[str, str], threshold: float
) -> Iterator[str]:
    """How the runs differ, other than in the model, and what this means for the ratio."""
    first, second = names
    if words := _ranked_differently(one, two):
        yield (
            f"the heads of {first} and {second} were ranked differently ({words}), so the ratio "
            "also compares the rankings."
        )
    ranked = [len(run.effects.values) for run in (one, two) if run.effects.over == "prompts"]
    judged = [run.curve.values.shape[1] for run in (one, two)]
    digests, thresholds = (one.judged_on, two.judged_on), (one.threshold, two.threshold)
    yield from different_runs("heads", names, ranked, judged, digests)
    yield from different_thresholds(names, thresholds, threshold)
    if _architecture(one) != _architecture(two):
        yield (
            f"{first} has {_architecture(one)}, {second} {_architecture(two)}: their heads do not "
            "correspond, so the overlap of the circuits was not computed."
        )


def different_runs(
    unit: str,
    names: tuple[str, str],
    ranked: Sequence[int],
    judged: Sequence[int],
    digests: tuple[str, str],
) -> Iterator[str]:
    """How the prompts differ that ranked heads or edges, and those that judged the ranking."""
    first, second = names
    for what, counts in (("ranked", ranked), ("judged", judged)):
        if len(set(counts)) > 1:
            yield (
                f"the {unit} of {first} were {what} on {counts[0]} prompts, those of {second} on "
                f"{counts[1]}. Use the same number for both."
            )
    if judged[0] == judged[1] and digests[0] and digests[1] not in ("", digests[0]):
        yield (
            f"{first} and {second} were judged on different prompts, so the ratio also compares "
            "the prompts. Use the same seed and options; models with different tokenizers may "
            "still get different words."
        )


def different_thresholds(
    names: tuple[str, str], thresholds: tuple[float, float], threshold: float
) -> Iterator[str]:
    """Whether the runs had other thresholds than the comparison."""
    if thresholds[0] != thresholds[1]:
        yield (
            f"the run of {names[0]} has threshold {thresholds[0]:g}, that of {names[1]} "
            f"{thresholds[1]:g}; here both have {threshold:g}."
        )


def _ranked_differently(one: Discovery, two: Discovery) -> str:
    """What differs in how the heads were ranked: "method patch and ig"."""
    if one.effects.method != two.effects.method:
        return f"method {one.effects.method} and {two.effects.method}"
    a, b = ({**run.effects.settings, "signed": run.signed} for run in (one, two))
    differing = [name for name in {**a, **b} if a.get(name) != b.get(name)]
    return ", ".join(f"{name} {a.get(name)} and {b.get(name)}" for name in differing)


def _architecture(found: Discovery) -> str:
    """The sizes that make heads correspond, in words."""
    layers, heads = found.edges.used.shape[1:]
    width, parallel = (found.shape.get(name) for name in ("d_model", "parallel_attn_mlp"))
    words = f"{layers} layers of {heads} heads, width {width}"
    return f"{words}, attention and MLP in parallel" if parallel else words


def _task(one: Discovery, two: Discovery, threshold: float) -> TaskComparison:
    sides = [ModelCurve(found.curve, _edges(found), found.sparse) for found in (one, two)]
    counts = [side.curve.needed(threshold) for side in sides]
    drawn = [side.curve.needed_draws(threshold) for side in sides]
    edges = [float(side.edges[n].mean()) for side, n in zip(sides, counts, strict=True)]
    drawn_edges = [_drawn_edges(side, n) for side, n in zip(sides, drawn, strict=True)]
    circuits = [side.curve.circuit(n) for side, n in zip(sides, counts, strict=True)]
    alike = _architecture(one) == _architecture(two)
    return TaskComparison(
        one.curve.task,
        sides[0],
        sides[1],
        ratio([float(n) for n in counts], drawn),
        ratio(edges, drawn_edges),
        Circuit.jaccard(circuits[0], circuits[1]) if alike else None,
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
