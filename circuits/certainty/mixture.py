"""Does one circuit serve all prompts of a task, or do groups of prompts use different heads?

The question is that of arXiv:2605.09129. Clustering always finds clusters, so that here the
clusters are tested, and reported only if a single circuit would rarely give any as clear:

1. A prompt is the vector of its effects per head. What one circuit at varying strength explains is
   taken away: the part along the mean vector (the prompt's strength), and the scale of what is left
   (a + b strength^2, fitted by non-negative least squares, for noise that adds or multiplies).
2. The prompts are cut in two groups of at least 4 and at least an eighth, so that the groups differ
   most: 2-means in the first 32 principal components, with cuts along the first three as starts.
3. The cluster index (variance within the groups / all variance) is compared with that of 999
   samples of one Gaussian with the same covariance, treated alike: p is the share of them with as
   small an index (SigClust, Liu et al. 2008; the covariance is shrunk as in OAS, Chen et al. 2010).
   The same is done with the index along the line between the groups' means alone, and the larger p
   counts: the first alone takes skewed effects for groups, the second what chance separates where
   there are more heads than prompts.
4. If p is small, both groups are tested in the same way, at a level that is smaller in proportion
   to their prompts (Kimes et al. 2017), so that all splits together keep the level.
5. If there are groups, they are compared with what is known of the prompts: length, order of the
   marked parts, first word, group, answer (Cramér's V, permutation p, corrected for their number).

One circuit at two strengths is one circuit. So is one whose heads trade off continuously. Fewer
than 16 prompts are not tested.

Measured at a level of 0.05, 100 samples each: of one circuit, of 1 to 32 of 32 heads, on 32 prompts
whose strengths and noise are even, skewed or heavy-tailed, 0 to 8% were split (8% where only one or
two heads act). Of two groups with three heads of their own, noise 0.3 of an effect, 85% were found
on 8 + 8 prompts, 30% on 4 + 12, 90 to 100% on 32 prompts; at noise 0.5, 30% on 16 + 16 prompts and
95% on 32 + 32.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from circuits.circuit import Head
from mechheads.heads import in_words, name_of
from mechheads.prompts import Pair, Prompts
from mechheads.runs.result import Result
from mechheads.scoring.effects import HeadEffects

if TYPE_CHECKING:
    import pandas as pd

LEVEL = 0.05
LEAST = 16  # prompts, to test whether they are one group
SMALLEST = 4  # prompts of a group
DIRECTIONS, STARTS, STEPS = 32, 3, 5
SHOWN = 5  # heads per group

Array = NDArray[np.float64]


@dataclass(frozen=True)
class LabelFit:
    """How well a label of the prompts agrees with their groups: Cramér's V, 0 to 1, and its p."""

    name: str
    agreement: float
    p: float


@dataclass(frozen=True)
class PromptClusters(Result):
    """Groups of prompts that different heads act on; one group if no split is significant.

    `p` is that of the first split, and `index` its cluster index along the line between the groups
    (0 if they are points, 0.36 for a wide Gaussian) next to that of one circuit (`usual`, the
    median of the null samples); None if it was not tested, and `why` says why.
    `members` is the group of every prompt, `means` the mean effects of every group.
    """

    task: str
    model: str
    members: Int[Tensor, " prompt"]
    means: Float[Tensor, "group layer head"]
    p: float | None
    index: float | None
    usual: float | None
    labels: tuple[LabelFit, ...] = ()
    why: str = ""

    def check(self) -> None:
        """Raise a ValueError if stored groups cannot be ours."""
        if sorted(set(self.members.tolist())) != list(range(len(self.means))):
            raise ValueError("its groups do not match its prompts")
        if (self.p is None) != (self.index is None) or (self.p is None) != (self.usual is None):
            raise ValueError("it is tested and not tested")
        if self.p is not None and not 0 < self.p <= 1:
            raise ValueError(f"its p is {self.p}")

    @property
    def groups(self) -> int:
        """The number of groups."""
        return len(self.means)

    @property
    def real(self) -> bool:
        """Whether there are several groups, each split of which is significant."""
        return self.groups > 1

    def strongest(self, group: int, most: int = SHOWN) -> list[Head]:
        """The heads with the largest mean effect in a group of prompts."""
        order = self.means[group].abs().flatten().sort(descending=True, stable=True).indices
        heads = self.means.shape[2]
        return [divmod(i, heads) for i in order[:most].tolist()]

    @property
    def fits(self) -> list[LabelFit]:
        """Labels that agree with the groups beyond chance, the best first."""
        return sorted((f for f in self.labels if f.p < LEVEL), key=lambda f: -f.agreement)

    @property
    def headline(self) -> dict[str, Any]:
        """The number of groups, and the p-value of the first split."""
        return {"prompt_groups": self.groups, "prompt_groups_p": self.p}

    @property
    def sentence(self) -> str:
        """The same in words."""
        if self.p is None:
            return f"Whether the prompts need several circuits was not tested: {self.why}."
        if not self.real:
            return (
                f"No sign of several circuits in the {len(self.members)} ranking prompts "
                f"(p = {self.p:.2g})."
            )
        sizes = in_words([str(int((self.members == i).sum())) for i in range(self.groups)])
        what = (
            f"They go with the {self.fits[0].name} (Cramér's V {self.fits[0].agreement:.2f}, "
            f"p = {self.fits[0].p:.2g})."
            if self.fits
            else "They go with no known label of the prompts."
            if self.labels
            else ""
        )
        return (
            f"The ranking prompts fall into {self.groups} groups ({sizes} prompts) in which "
            f"the heads' effects differ (p = {self.p:.2g}): the task may have several circuits. "
            f"{what}"
        ).strip()

    def frame(self) -> "pd.DataFrame":
        """A row per group: prompts, and its strongest heads with their mean effects."""
        import pandas as pd

        rows = [
            (
                group + 1,
                int((self.members == group).sum()),
                ", ".join(
                    f"{name_of(*head)} ({float(self.means[group][head]):+.3g})"
                    for head in self.strongest(group)
                ),
            )
            for group in range(self.groups)
        ]
        return pd.DataFrame(rows, columns=pd.Index(["group", "prompts", "strongest heads"]))

    def label_frame(self) -> "pd.DataFrame":
        """A row per label: its agreement with the groups, and its p-value."""
        import pandas as pd

        rows = [(fit.name, fit.agreement, fit.p) for fit in self.labels]
        names = ["label of the prompts", "Cramér's V", "p (corrected)"]
        return pd.DataFrame(rows, columns=pd.Index(names))


def several_circuits(
    effects: HeadEffects,
    prompts: Prompts | None = None,
    *,
    level: float = LEVEL,
    draws: int = 999,
    seed: int = 0,
) -> PromptClusters:
    """Test whether different heads act on different groups of prompts.

    Args:
        effects: what `mechheads.score_heads` returns, with a value per prompt
        prompts: the prompts of these effects; their labels are compared with the groups
        level: how often groups may be found where there is one circuit
        draws: samples of a single circuit to compare with
        seed: seed of these samples

    Returns:
        PromptClusters: the group of every prompt, one if no split is significant, with the p-value
        of the first split. Runs no model; 16 prompts or more are tested.

    >>> import circuits, mechheads, tasks
    >>> model = mechheads.load("mini")
    >>> prompts = tasks.make("greater_than", model, n=16)
    >>> effects = mechheads.score_heads(model, prompts, "attribution", quiet=True)
    >>> circuits.several_circuits(effects, prompts).real
    False
    """
    n = len(effects.values)
    members = torch.zeros(n, dtype=torch.int64)
    said = effects.task, effects.model
    if why := _untestable(effects):
        return PromptClusters(*said, members, effects.scores[None], None, None, None, (), why)
    values = effects.values.flatten(1).double().numpy()
    rng = np.random.default_rng(seed)
    first = tested_split(values, rng, draws)
    groups = _groups(values, np.arange(n), first, rng, draws, level)
    for i, group in enumerate(sorted(groups, key=lambda rows: (-len(rows), int(rows[0])))):
        members[torch.from_numpy(group)] = i
    means = torch.stack([effects.values[members == i].mean(0) for i in range(len(groups))])
    named = {} if prompts is None or len(prompts) != n else labels_of_prompts(prompts.pairs)
    fits = _fits(members.numpy(), named, rng, draws) if len(groups) > 1 else ()
    p, index, usual = first[1:]
    return PromptClusters(*said, members, means, p, index, usual, fits)


def _untestable(effects: HeadEffects) -> str:
    """Why the prompts cannot be tested, or nothing."""
    if not effects.sampled:
        return "the scores are not of single prompts"
    if len(effects.values) < LEAST:
        return f"{len(effects.values)} prompts are fewer than {LEAST}"
    if not bool(directions(effects.values.flatten(1).double().numpy()).any()):
        return "the effects do not differ between prompts"
    return ""


Split = tuple[NDArray[np.bool_], float, float, float]


def _groups(
    values: Array,
    rows: NDArray[np.int64],
    split: Split,
    rng: np.random.Generator,
    draws: int,
    level: float,
) -> list[NDArray[np.int64]]:
    """The prompts of every group: those of `rows`, or of both sides of a significant split."""
    second, p, *_ = split
    if p > level * (len(rows) - 1) / (len(values) - 1):
        return [rows]
    found = []
    for side in (rows[~second], rows[second]):
        if len(side) < LEAST or not directions(values[side]).any():
            found.append(side)
        else:
            found += _groups(
                values, side, tested_split(values[side], rng, draws), rng, draws, level
            )
    return found


def tested_split(values: Array, rng: np.random.Generator, draws: int) -> Split:
    """Which prompts are in the second group, p, and the index along the line: own and usual."""
    left = directions(values)
    second, *own = cut_in_two(left[None])
    spread = np.sqrt(shrunk(left.var(0), len(left)))
    drawn: list[tuple[Array, Array]] = []
    chunk = max(1, 4_000_000 // left.size)
    for begin in range(0, draws, chunk):
        shape = (min(chunk, draws - begin), *left.shape)
        drawn.append(cut_in_two(rng.standard_normal(shape) * spread)[1:])
    null = [np.concatenate(indices) for indices in zip(*drawn, strict=True)]
    # Groups of points have an index of 0: rounding must not make it larger than itself.
    as_small = [(many <= one[0] + 1e-12).sum() for many, one in zip(null, own, strict=True)]
    p = (1 + max(as_small)) / (1 + draws)
    return second[0], float(p), float(own[1][0]), float(np.median(null[1]))


def shrunk(variances: Array, n: int) -> Array:
    """Variances of principal components of n prompts, drawn to their mean: chance spreads them.

    The shrinkage of OAS (Chen et al. 2010, arXiv:0907.4698, equation 23).
    """
    d, total, squares = len(variances), variances.sum(), (variances**2).sum()
    spread = (n + 1 - 2 / d) * (squares - total**2 / d)
    if spread <= 0:
        return variances
    share = min(1.0, ((1 - 2 / d) * squares + total**2) / spread)
    return (1 - share) * variances + share * total / d


def directions(values: Array) -> Array:
    """What one circuit at varying strength does not explain, in its principal components.

    [prompt, component], components by variance; all 0 if nothing is left.
    """
    from scipy.optimize import nnls

    mean = values.mean(0)
    size = float(mean @ mean)
    strength = values @ mean / size if size > 0 else np.zeros(len(values))
    left = values - strength[:, None] * mean
    squares = (left**2).sum(1)
    if squares.sum() <= 1e-10 * (values**2).sum():
        return np.zeros((len(values), 1))
    terms = np.stack([np.ones(len(values)), strength**2], axis=1)
    scale = terms @ nnls(terms, squares)[0]
    left = left / np.sqrt(np.maximum(scale, 0.1 * squares.mean()))[:, None]
    left -= left.mean(0)
    parts, sizes, _ = np.linalg.svd(left, full_matrices=False)
    return (parts * sizes)[:, :DIRECTIONS]


def cut_in_two(points: Array) -> tuple[NDArray[np.bool_], Array, Array]:
    """The best cut of each sample [sample, prompt, component]: the second group, and two indices.

    The first index is of all variance, the second of that along the line between both means. A cut
    is across a direction: first the principal components, then the line between the groups' means.
    """
    points = points - points.mean(1, keepdims=True)
    _, axes = np.linalg.eigh(np.swapaxes(points, 1, 2) @ points)
    best = np.full(len(points), -1.0)
    chosen = np.zeros(points.shape[:2], dtype=bool)
    for start in range(1, min(STARTS, points.shape[2]) + 1):
        direction = axes[:, :, -start]
        for _ in range(STEPS):
            between, second = _cut_across(points, direction)
            better = between > best
            best, chosen[better] = np.where(better, between, best), second[better]
            direction = _line(points, second)
    line = _line(points, chosen)
    along = ((points @ line[:, :, None]) ** 2).sum((1, 2)) / (line**2).sum(1)
    return chosen, 1 - best / (points**2).sum((1, 2)), 1 - best / along


def _line(points: Array, second: NDArray[np.bool_]) -> Array:
    """From the mean of the first group to that of the second."""
    mask = second[:, :, None]
    return (points * mask).sum(1) / mask.sum(1) - (points * ~mask).sum(1) / (~mask).sum(1)


def _cut_across(points: Array, direction: Array) -> tuple[Array, NDArray[np.bool_]]:
    """The largest variance between two groups on both sides of a cut, and the second group."""
    n = points.shape[1]
    least = max(SMALLEST, -(-n // 8))
    order = np.einsum("snd,sd->sn", points, direction).argsort(1, kind="stable")
    sums = np.take_along_axis(points, order[:, :, None], 1).cumsum(1)
    counts = np.arange(1, n + 1)
    # The points are centred: the sums of both sides differ in their sign alone.
    gains = (sums[:, :-1] ** 2).sum(2) * (1 / counts[:-1] + 1 / (n - counts[:-1]))
    at = gains[:, least - 1 : n - least].argmax(1) + least  # prompts before the cut
    second = np.zeros(points.shape[:2], dtype=bool)
    np.put_along_axis(second, order, counts[None] > at[:, None], 1)
    return np.take_along_axis(gains, at[:, None] - 1, 1)[:, 0], second


def labels_of_prompts(pairs: Sequence[Pair]) -> dict[str, list[str]]:
    """What is known of every prompt, by name: values that some prompts share and others lack."""
    ordered = [sorted(pair.spans, key=lambda span: span.begin) for pair in pairs]
    every = {
        "length in words": [str(len(pair.clean.split())) for pair in pairs],
        "order of the marked parts": [" ".join(span.name for span in spans) for spans in ordered],
        "first word": [(pair.clean.split() or [""])[0] for pair in pairs],
        "group": [pair.group for pair in pairs],
        "answer": [pair.answers[0] for pair in pairs],
    }
    most = len(pairs) // 2
    return {name: values for name, values in every.items() if 2 <= len(set(values)) <= most}


def _fits(
    members: NDArray[np.int64],
    named: Mapping[str, list[str]],
    rng: np.random.Generator,
    draws: int,
) -> tuple[LabelFit, ...]:
    """How well each label agrees with the groups, by permutation, corrected for their number."""
    found = []
    for name, values in named.items():
        codes = np.unique(values, return_inverse=True)[1]
        own = cramers_v(members, codes)
        null = [cramers_v(rng.permutation(members), codes) for _ in range(draws)]
        p = (1 + sum(v >= own - 1e-12 for v in null)) / (1 + draws)
        found.append(LabelFit(name, own, min(1.0, p * len(named))))
    return tuple(found)


def cramers_v(one: NDArray[np.int64], two: NDArray[np.int64]) -> float:
    """Cramér's V of two labellings: 0 if independent, 1 if the coarser follows from the finer.

    >>> cramers_v(np.array([0, 0, 1, 1]), np.array([2, 2, 0, 1]))
    1.0
    """
    rows, columns = int(one.max()) + 1, int(two.max()) + 1
    table = np.bincount(one * columns + two, minlength=rows * columns).reshape(rows, columns)
    table = table[:, table.any(0)]
    expected = np.outer(table.sum(1), table.sum(0)) / len(one)
    chi = float(((table - expected) ** 2 / expected).sum())
    least = min(table.shape) - 1
    return float(np.sqrt(chi / (len(one) * least))) if least else 0.0
