"""From numbers to places: ranks within a round, means over rounds, and their intervals.

A pair is a model and a task; a round is a pair with one sample of prompts, drawn with one seed.

1. Rank: the place of a method within a round, from 1, which is best; equal methods share their
   mean place.
2. The mean of a measure is over pairs, and its interval over seeds: Student's t of one mean per
   seed. It says what other prompts of the same tasks would give on the same models.
3. With a single seed, the interval is over the judging prompts instead (`statistics.bootstrap` in
   every round). Those of several pairs are averaged, as if they erred together: at most too wide.
4. The mean rank is over rounds, and its interval over pairs if there are three or more: Student's t
   of one mean rank per pair. It says what other models and tasks like these would give. With one
   or two pairs it is over seeds, as in 2.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.scoring.statistics import student

PAIRS = 3  # or more, for an interval over pairs


@dataclass(frozen=True)
class Measure:
    """What methods are compared by, whether more is better, and the range of possible values."""

    name: str
    title: str
    more_is_better: bool
    about: str
    within: tuple[float, float] = (-torch.inf, torch.inf)

    @property
    def better(self) -> str:
        """Which direction is better, in words."""
        return "higher is better" if self.more_is_better else "lower is better"


MEASURES = {
    measure.name: measure
    for measure in (
        Measure(
            "cpr",
            "CPR",
            True,
            "The area under f at MIB's ten shares of the heads, ranked by signed effect.",
        ),
        Measure(
            "cmd",
            "CMD",
            False,
            "The area between f and 1 at MIB's ten shares of the heads, ranked by size.",
            (0.0, torch.inf),
        ),
        Measure(
            "needed_share",
            "N",
            False,
            "The fewest heads, ranked by size, that reach the threshold, as a share of all heads.",
            (0.0, 1.0),
        ),
        Measure(
            "auroc",
            "AUROC",
            True,
            "The probability that a known head is ranked above another one, by size; only where "
            "the heads are known: on the models that we wrote, and where a circuit was published.",
            (0.0, 1.0),
        ),
    )
}


def ranks(values: Float[Tensor, " method"], measure: Measure) -> Float[Tensor, " method"]:
    """Places from 1, which is best; equal values share the mean of their places.

    >>> import torch
    >>> ranks(torch.tensor([0.5, 0.9, 0.5]), MEASURES["cpr"]).tolist()
    [2.5, 1.0, 2.5]
    """
    values = values if measure.more_is_better else -values
    better = (values[None] > values[:, None]).sum(1)
    equal = (values[None] == values[:, None]).sum(1)
    return better + (equal + 1) / 2


@dataclass(frozen=True)
class Estimate:
    """A mean per method, its interval, and what the interval is over: empty if there is none."""

    mean: Float[Tensor, " method"]
    low: Float[Tensor, " method"]
    high: Float[Tensor, " method"]
    over: str = ""


def mean_value(
    values: Float[Tensor, "pair seed method"],
    errors: Float[Tensor, "pair method"] | None,
    within: tuple[float, float] = (-torch.inf, torch.inf),
) -> Estimate:
    """The mean over pairs and seeds; `errors` are half-widths over prompts, for a single seed."""
    mean = values.mean((0, 1))
    if values.shape[1] > 1:
        low, high = (end.clamp(*within) for end in student(values.mean(0)))
        return Estimate(mean, low, high, "seeds")
    if errors is None:
        nothing = torch.full_like(mean, torch.nan)
        return Estimate(mean, nothing, nothing)
    half = errors.mean(0)
    low, high = ((mean + end).clamp(*within) for end in (-half, half))
    return Estimate(mean, low, high, "judging prompts")


def mean_rank(places: Float[Tensor, "pair seed method"]) -> Estimate:
    """The mean place over pairs and seeds; its interval stays within 1 and the last place."""
    pairs, seeds, methods = places.shape
    mean = places.mean((0, 1))
    if pairs >= PAIRS:
        ends, over = student(places.mean(1)), "pairs of model and task"
    elif seeds > 1:
        ends, over = student(places.mean(0)), "seeds"
    else:
        nothing = torch.full_like(mean, torch.nan)
        return Estimate(mean, nothing, nothing)
    low, high = (end.clamp(1, methods) for end in ends)
    return Estimate(mean, low, high, over)
