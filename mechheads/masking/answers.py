"""Model answers with no heads masked, with the first K of a ranking, and with K random others.

Or with given heads masked, and with as many random others.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.engine.generate import generate
from mechheads.errors import MechheadsError
from mechheads.metrics.text import Quality, exact
from mechheads.models.model import Model, shape_of
from mechheads.prompts import Questions
from mechheads.scoring.statistics import bootstrap

from .selection import GIVEN, NONE, RANDOM, TOP, Head, check_sizes, overlap, random_heads

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Condition:
    """What is masked: `none`, the `top` k heads, `given` heads, or one draw of k `random` ones."""

    selection: str
    k: int
    draw: int
    heads: tuple[Head, ...]


@dataclass(frozen=True)
class FunctionAnswers:
    """One function: its conditions, the answers under each, and every metric of every answer.

    `ranking` is empty if the heads were given.
    """

    function: str
    ranking: tuple[Head, ...]
    prompts: tuple[str, ...]
    gold: tuple[tuple[str, ...], ...]
    conditions: tuple[Condition, ...]
    said: tuple[tuple[str, ...], ...]
    metrics: tuple[str, ...]
    values: Float[Tensor, "condition metric prompt"]

    def check(self) -> None:
        """Raise a ValueError if its parts are not of the same conditions, metrics and prompts."""
        listed = (len(self.conditions), len(set(self.metrics)), len(self.prompts))
        if listed != self.values.shape or len(self.metrics) != listed[1]:
            raise ValueError("its values are of other conditions, metrics or prompts")
        answered = [len(self.gold), *map(len, self.said)]
        if len(self.said) != listed[0] or set(answered) != {listed[2]} or not all(self.gold):
            raise ValueError("its answers are of other prompts or conditions")

    def frame(self) -> "pd.DataFrame":
        """A tidy frame: function, selection, k, draw, metric, value (mean over prompts)."""
        import pandas as pd

        rows = [
            (self.function, c.selection, c.k, c.draw, metric, self.values[i, j].mean().item())
            for i, c in enumerate(self.conditions)
            for j, metric in enumerate(self.metrics)
        ]
        columns = ["function", "selection", "k", "draw", "metric", "value"]
        return pd.DataFrame(rows, columns=pd.Index(columns))

    @property
    def chosen(self) -> str:
        """The selection that is compared with random heads: `top` or `given`."""
        return GIVEN if any(c.selection == GIVEN for c in self.conditions) else TOP

    @property
    def sizes(self) -> list[int]:
        """Every k, in order."""
        return sorted({c.k for c in self.conditions if c.selection == self.chosen})

    def right(self) -> Float[Tensor, "condition prompt"]:
        """1 where an answer is correct by exact match, independent of the metrics."""
        return torch.tensor([exact(texts, self.gold, self.said[0]) for texts in self.said])

    def of(self, selection: str, k: int, metric: str) -> Float[Tensor, "draw prompt"]:
        """A metric of every answer with k heads of this selection masked."""
        chosen = [c.selection == selection and c.k == k for c in self.conditions]
        return self.values[torch.tensor(chosen), self.metrics.index(metric)]

    def rows(self, metric: str) -> list[dict[str, Any]]:
        """The rows of `Masking.summary`, one per k."""
        rows, chosen = [], self.chosen
        for k in self.sizes:
            top, drawn = self.of(chosen, k, metric)[0], self.of(RANDOM, k, metric)
            means = drawn.mean(1) if len(drawn) else torch.tensor([torch.nan])
            more = drawn.mean(0) - top
            (top_low, top_high), (more_low, more_high) = interval(top, 0.0), interval(more)
            sets = [c.heads for c in self.conditions if c.selection == RANDOM and c.k == k]
            rows.append(
                {
                    "function": self.function,
                    "k": k,
                    "metric": metric,
                    "whole": self.of(NONE, 0, metric).mean().item(),
                    chosen: top.mean().item(),
                    f"{chosen}_low": top_low,
                    f"{chosen}_high": top_high,
                    "random": means.mean().item(),
                    "worst": means.min().item(),
                    "best": means.max().item(),
                    "overlap": overlap(sets),
                    "more": more.mean().item(),
                    "more_low": more_low,
                    "more_high": more_high,
                }
            )
        return rows

    def loss(self, metric: str) -> "Loss":
        """How much of a metric is lost, mean over k."""
        whole = self.of(NONE, 0, metric)[0]
        top = torch.stack([self.of(self.chosen, k, metric)[0] for k in self.sizes]).mean(0)
        drawn = torch.stack([self.of(RANDOM, k, metric).mean(0) for k in self.sizes]).mean(0)
        lost = [(whole - values).mean().item() for values in (top, drawn)]
        return Loss(lost[0], lost[1], *interval(drawn - top))

    def records(self) -> list[dict[str, Any]]:
        """The model's answers, condition by condition."""
        return [
            {
                "function": self.function,
                "selection": c.selection,
                "k": c.k,
                "draw": c.draw,
                "prompt": prompt,
                "answer": said,
                "gold": list(gold),
            }
            for c, texts in zip(self.conditions, self.said, strict=True)
            for prompt, said, gold in zip(self.prompts, texts, self.gold, strict=True)
        ]


@dataclass(frozen=True)
class Loss:
    """What is lost without the top (or given) heads and without random ones.

    `low` and `high` are the 95% interval of the difference, paired by question.
    """

    top: float
    random: float
    low: float
    high: float

    @property
    def more(self) -> float:
        """How much more is lost without top heads than without random ones."""
        return self.top - self.random


def mask_heads(
    model: Model,
    questions: Questions,
    ranking: Sequence[Head],
    sizes: Sequence[int],
    qualities: Sequence[Quality],
    *,
    draws: int = 5,
    seed: int = 0,
    positions: str = "last",
    scale: float = 0.0,
    max_tokens: int = 32,
    budget: int | None = None,
    quiet: bool = False,
    given: bool = False,
) -> FunctionAnswers:
    """Answers with the first k heads masked and with k random others masked, for every k.

    A masked head's z is multiplied by `scale`. `given` says that the first heads were given, and
    that the order of the others means nothing.
    """
    check_sizes(sizes, len(ranking), draws)
    conditions = [Condition(NONE, 0, 0, ())]
    for k in sizes:
        conditions.append(Condition(GIVEN if given else TOP, k, 0, tuple(ranking[:k])))
        conditions += random_conditions(random_heads(ranking, k, draws, seed))
    answers = answer_conditions(
        model,
        questions,
        conditions,
        qualities,
        positions=positions,
        scale=scale,
        max_tokens=max_tokens,
        budget=budget,
        quiet=quiet,
    )
    return replace(answers, ranking=() if given else tuple(ranking))


def answer_passes(questions: Questions, conditions: int, max_tokens: int) -> float:
    """About how many passes answers cost, for progress bars, if most of them end early.

    The prompt is read once for all conditions, then every token of an answer is a short pass.
    """
    return len(questions) * (1 + conditions * max_tokens / 36)


def answer_conditions(
    model: Model,
    questions: Questions,
    conditions: Sequence[Condition],
    qualities: Sequence[Quality],
    *,
    positions: str,
    scale: float,
    max_tokens: int,
    budget: int | None,
    quiet: bool,
) -> FunctionAnswers:
    """Answers under every condition, with all metrics; the first condition masks nothing.

    A metric judges all answers in one call.
    """
    if positions not in ("last", "all"):
        raise MechheadsError(f"positions must be last or all, got {positions!r}.")
    prompts = tuple(q.prompt for q in questions.items)
    gold = tuple(q.answers for q in questions.items)
    said = generate(
        model,
        prompts,
        torch.stack([mask_of(model, c.heads, scale) for c in conditions]),
        positions=positions,
        max_tokens=max_tokens,
        budget=budget,
        quiet=quiet,
    )
    every, times = list(chain(*said)), len(conditions)
    judged = [quality.judge(every, gold * times, said[0] * times) for quality in qualities]
    return FunctionAnswers(
        questions.name,
        (),
        prompts,
        gold,
        tuple(conditions),
        tuple(map(tuple, said)),
        tuple(quality.name for quality in qualities),
        torch.tensor(judged).unflatten(1, (times, len(prompts))).transpose(0, 1),
    )


def random_conditions(sets: Sequence[Sequence[Head]]) -> list[Condition]:
    """One condition per draw."""
    return [Condition(RANDOM, len(heads), i, tuple(heads)) for i, heads in enumerate(sets)]


def interval(values: Float[Tensor, " prompt"], least: float = -1.0) -> tuple[float, float]:
    """95% interval of the mean over prompts, of metrics from 0 to 1 or of their differences."""
    within = min(least, values.min().item()), max(1.0, values.max().item())
    low, high = bootstrap(values[:, None], within=within)
    return low.item(), high.item()


def mask_of(model: Model, heads: Sequence[Head], scale: float) -> Float[Tensor, "layer head"]:
    """The factor that scales every head's z."""
    keep = torch.ones(shape_of(model).grid)
    for layer, head in heads:
        keep[layer, head] = scale
    return keep
