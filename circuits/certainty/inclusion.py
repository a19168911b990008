"""How often is each head in the circuit, if the prompts are drawn again?

The circuit is the first N heads of a ranking, N the fewest that reach the threshold. Both vary:

1. The ranking prompts are drawn again with replacement, 2,000 times; every sample ranks the heads
   anew by their effects per prompt. This gives P(rank = r) of every head.
2. The judging prompts are drawn again with replacement, 2,000 times; every sample gives an N, where
   its curve reaches the threshold. This gives P(N >= r).
3. Both sets of prompts are independent, so that inclusion = sum over r of P(rank = r) P(N >= r):
   every sample of one is combined with every sample of the other.

No model is run, which takes one approximation: the curve of a resampled ranking is not measured.
N is that of the measured ranking, on resampled judging prompts. Where rankings differ in the order
of equally good heads, their curves hardly differ; a ranking that is worse than the measured one
would need more heads, so that inclusion is, if anything, too low for heads far down the ranking.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from circuits.circuit import Head
from circuits.curve import Curve
from mechheads.errors import MechheadsError
from mechheads.heads import count_of, in_words, listed, name_of
from mechheads.runs.frames import tidy
from mechheads.runs.result import Result
from mechheads.scoring.effects import HeadEffects
from mechheads.scoring.statistics import RESAMPLES, ends, resample

if TYPE_CHECKING:
    import pandas as pd

THRESHOLDS = (0.8, 0.85, 0.9, 0.95)
SURE, POSSIBLE = 0.95, 0.05


@dataclass(frozen=True)
class Inclusion(Result):
    """The share of resampled prompts on which each head is in the circuit, from 0 to 1.

    `frequency` is that of the run's own rule: the first heads of the ranking that reach its
    threshold, or as many as were asked for. `by_threshold` is the same at other thresholds, and
    `sizes` the heads that these need: measured, and the ends of a 95% interval over prompts.
    `members` are the first heads of the measured ranking that the rule keeps; `threshold` is None
    if so many were asked for. `reranked` is False
    if there is one score per head, so that only N varies.
    """

    members: tuple[Head, ...]
    ranking: tuple[Head, ...]
    threshold: float | None
    frequency: Float[Tensor, "layer head"]
    thresholds: tuple[float, ...]
    by_threshold: Float[Tensor, "threshold layer head"]
    sizes: Float[Tensor, "threshold 3"]
    reranked: bool

    def check(self) -> None:
        """Raise a ValueError if stored frequencies cannot be ours."""
        layers, heads = self.frequency.shape
        every = [(layer, head) for layer in range(layers) for head in range(heads)]
        if sorted(self.ranking) != every or self.ranking[: len(self.members)] != self.members:
            raise ValueError("its ranking does not match its heads")
        for shares in (self.frequency, self.by_threshold):
            if not bool(((shares >= 0) & (shares <= 1)).all()):
                raise ValueError("its frequencies are not shares")
        if len(self.thresholds) != len(self.by_threshold) or not self.members:
            raise ValueError("its thresholds do not match its frequencies")

    def of(self, heads: Sequence[Head]) -> list[float]:
        """The inclusion of some heads."""
        return [float(self.frequency[head]) for head in heads]

    @property
    def sure(self) -> list[Head]:
        """Heads in the circuit on 95% of the samples or more, in ranking order."""
        return [head for head in self.ranking if float(self.frequency[head]) >= SURE]

    @property
    def possible(self) -> list[Head]:
        """Heads in the circuit on 5% of the samples or more, in ranking order."""
        return [head for head in self.ranking if float(self.frequency[head]) >= POSSIBLE]

    @property
    def headline(self) -> dict[str, Any]:
        """How many heads are sure, and how many are possible."""
        return {"heads_sure": len(self.sure), "heads_possible": len(self.possible)}

    @property
    def sentence(self) -> str:
        """The same in words."""
        inside = set(self.members)
        others = [head for head in self.possible if head not in inside]
        unsure = [head for head in self.members if float(self.frequency[head]) < SURE]
        least = sorted(unsure, key=lambda head: float(self.frequency[head]))[:3]
        doubts = in_words([f"{name_of(*h)} in {float(self.frequency[h]):.0%}" for h in least])
        stay = len(self.members) - len(unsure)
        enter = "other enters" if len(others) == 1 else "others enter"
        return (
            f"If the {'' if self.reranked else 'judging '}prompts are drawn again, {stay} of the "
            f"{count_of(self.members)} that {self._does} stay{'s' * (stay == 1)} in at least "
            f"{SURE:.0%} of the samples{f' (least often {doubts})' if least else ''}, and "
            f"{len(others)} {enter} in at least {POSSIBLE:.0%}"
            f"{f': {listed(others)}' if others else ''}."
        )

    @property
    def _does(self) -> str:
        """What the rule keeps, in words."""
        one = len(self.members) == 1
        if self.threshold is None:
            return "is the strongest" if one else "are the strongest"
        return f"explain{'s' * one} {self.threshold:.0%}"

    def frame(self) -> "pd.DataFrame":
        """A tidy frame: layer, head, rank, inclusion, and inclusion at every threshold."""
        names = [f"inclusion_{threshold:g}" for threshold in self.thresholds]
        columns = {"inclusion": self.frequency, **dict(zip(names, self.by_threshold, strict=True))}
        frame = tidy(("layer", "head"), columns)
        rank = {head: i for i, head in enumerate(self.ranking, start=1)}
        heads = zip(frame["layer"], frame["head"], strict=True)
        frame.insert(2, "rank", [rank[head] for head in heads])
        return frame

    def threshold_frame(self) -> "pd.DataFrame":
        """A row per threshold: heads needed, with their interval, and how many are sure."""
        import pandas as pd

        rows = [
            (f"{threshold:.0%}", *map(int, sizes), *_counts(shares))
            for threshold, sizes, shares in zip(
                self.thresholds, self.sizes.tolist(), self.by_threshold, strict=True
            )
        ]
        names = (
            "threshold|heads needed|from (95%)|to (95%)|sure (in 95% of samples)|possible (in 5%)"
        )
        return pd.DataFrame(rows, columns=pd.Index(names.split("|")))


def inclusion(
    effects: HeadEffects,
    curve: Curve,
    threshold: float = 0.9,
    *,
    size: int | None = None,
    signed: bool = False,
    thresholds: Sequence[float] = THRESHOLDS,
    seed: int = 0,
) -> Inclusion:
    """How often each head is in the circuit if ranking prompts and judging prompts are drawn again.

    Args:
        effects: the effects that ranked the heads, with their values per prompt
        curve: the explained-effect curve of that ranking, on other prompts
        threshold: the share of the effect that the circuit explains
        size: keep this many heads instead, so that only the ranking varies
        signed: whether the heads were ranked by the signed effect
        thresholds: other shares, to see how much hangs on the choice
        seed: seed of the samples

    Returns:
        Inclusion: per head, the share of samples (0 to 1) on which it is among the first heads that
        reach the threshold. Runs no model. The curve of a resampled ranking is not measured again:
        how many heads are needed comes from the measured curve, on resampled judging prompts.

    >>> import circuits, mechheads, tasks
    >>> model = mechheads.load("mini")
    >>> ranking, judging = tasks.make("ioi", model, n=32).halves()
    >>> effects = mechheads.score_heads(model, ranking, "attribution", quiet=True)
    >>> curve = circuits.explained_effect_curve(model, judging, effects, quiet=True)
    >>> found = circuits.inclusion(effects, curve)
    >>> round(float(found.frequency[effects.ranking()[0]]), 2)  # the strongest head
    1.0
    """
    ranking = effects.ranking(signed=signed)
    if tuple(ranking) != curve.ranking:
        raise MechheadsError(
            "The curve is of another ranking than these effects. Measure the curve of these "
            "effects, or give the same signed."
        )
    ranks = resampled_ranks(effects, signed=signed, seed=seed)
    shape = effects.scores.shape

    def share(sizes: Float[Tensor, " draw"]) -> Float[Tensor, "layer head"]:
        return (ranks @ survival(sizes, len(ranking))).clamp(0, 1).float().view(shape)

    def own(share_explained: float) -> int:
        return max(1, curve.needed(share_explained))

    drawn = {each: resampled_sizes(curve, each) for each in (*thresholds, threshold)}
    kept = own(threshold) if size is None else size
    sizes = [[own(each), *map(float, ends(drawn[each]))] for each in thresholds]
    return Inclusion(
        tuple(ranking[:kept]),
        tuple(ranking),
        threshold if size is None else None,
        share(drawn[threshold] if size is None else torch.tensor([float(size)])),
        tuple(thresholds),
        torch.stack([share(drawn[each]) for each in thresholds]),
        torch.tensor(sizes),
        not effects.single,
    )


def resampled_ranks(
    effects: HeadEffects, *, signed: bool = False, seed: int = 0, times: int = RESAMPLES
) -> Float[Tensor, "head rank"]:
    """How often each head has each rank (from 0) on resampled ranking prompts; rows sum to 1.

    Of a single score per head, there is one ranking. Ties are in the order of the heads, as in
    `effects.ranking`.
    """
    n = len(effects.values)
    weights = torch.ones(1, 1) if n == 1 else resample(n, seed, times)
    means = weights @ effects.values.flatten(1) / n
    order = (means if signed else means.abs()).sort(dim=1, descending=True, stable=True).indices
    heads = order.shape[1]
    cells = order * heads + torch.arange(heads)
    return torch.bincount(cells.flatten(), minlength=heads**2).view(heads, heads) / len(order)


def resampled_sizes(curve: Curve, threshold: float) -> Float[Tensor, " draw"]:
    """The heads needed on resampled judging prompts, at least 1; draws without an effect left out.

    Where the curve was not measured at every k, the smallest measured one.
    """
    found = curve.needed_draws(threshold)
    found = found[found.isfinite()].clamp(min=1)
    return found if len(found) else torch.tensor([float(max(1, curve.needed(threshold)))])


def survival(sizes: Float[Tensor, " draw"], heads: int) -> Float[Tensor, " rank"]:
    """The share of draws in which the head of each rank (from 0) is kept: P(N > rank)."""
    return (sizes[:, None] > torch.arange(heads)).float().mean(0)


def _counts(shares: Float[Tensor, "layer head"]) -> tuple[int, int]:
    return int((shares >= SURE).sum()), int((shares >= POSSIBLE).sum())
