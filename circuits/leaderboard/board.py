"""What a comparison of scoring methods found: rounds, and the standings over all of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.errors import MechheadsError
from mechheads.heads import in_words
from mechheads.runs.result import Result
from mechheads.scoring.statistics import student

from .rounds import LeftOut, Round
from .standings import MEASURES, Estimate, mean_rank, mean_value, ranks

if TYPE_CHECKING:
    import pandas as pd

OVERALL = ("cpr", "cmd", "needed_share")  # every round has these


@dataclass(frozen=True)
class Leaderboard(Result):
    """Scoring methods compared on the same rounds; `+` joins boards of different rounds.

    Standings are over pairs of model and task in which every method was measured with every seed.
    """

    rounds: tuple[Round, ...]
    threshold: float = 0.9
    replacement: str = "corrupt"
    draws: int = 10
    left_out: tuple[LeftOut, ...] = field(default=())

    def __add__(self, other: "Leaderboard") -> "Leaderboard":
        """The rounds of both."""
        if not isinstance(other, Leaderboard):
            return NotImplemented
        for name in ("threshold", "replacement", "draws"):
            one, two = getattr(self, name), getattr(other, name)
            if one != two:
                raise MechheadsError(
                    f"One leaderboard has {name} {one}, the other {two}. Measure both alike."
                )
        rounds = (*self.rounds, *other.rounds)
        if twice := _twice(rounds):
            raise MechheadsError(f"{twice} is in both leaderboards. Use another seed.")
        left_out = (*self.left_out, *other.left_out)
        return Leaderboard(rounds, self.threshold, self.replacement, self.draws, left_out)

    def check(self) -> None:
        """Raise a ValueError if a stored leaderboard cannot be one."""
        if not self.rounds or _twice(self.rounds):
            raise ValueError("it has no rounds, or one of them twice")
        if not 0 < self.threshold <= 1:
            raise ValueError(f"its threshold is {self.threshold}")
        for r in self.rounds:
            sizes = {len(r.cpr), len(r.cmd), len(r.needed), len(r.passes), len(r.methods)}
            sizes |= set() if r.auroc is None else {len(r.auroc)}
            if len(sizes) > 1 or len(set(r.methods)) < len(r.methods) or r.heads < 1:
                raise ValueError("its methods and numbers do not match")
            if not 0 <= r.needed.min() <= r.needed.max() <= r.heads:
                raise ValueError(f"it needs more than {r.heads} heads, or fewer than none")

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods of any round, in order."""
        return tuple(dict.fromkeys(m for r in self.rounds for m in r.methods))

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of any round, in order."""
        return tuple(sorted({r.seed for r in self.rounds}))

    @property
    def pairs(self) -> dict[tuple[str, str], list[Round]]:
        """The rounds of every pair of model and task, by seed."""
        rounds = sorted(self.rounds, key=lambda r: r.seed)
        found = {r.pair: [s for s in rounds if s.pair == r.pair] for r in self.rounds}
        return {pair: found[pair] for pair in dict.fromkeys(r.pair for r in self.rounds)}

    def complete(self, name: str) -> dict[tuple[str, str], list[Round]]:
        """The pairs that have the measure for every method and every seed."""
        wanted = set(self.methods)
        return {
            pair: rounds
            for pair, rounds in self.pairs.items()
            if [r.seed for r in rounds] == list(self.seeds)
            and all(set(r.methods) == wanted and r.values(name) is not None for r in rounds)
        }

    def _stacked(self, name: str) -> Float[Tensor, "pair seed method"] | None:
        """A measure of the complete pairs; None if there are none."""
        found = [
            [r.of(self.methods, value) for r in rounds if (value := r.values(name)) is not None]
            for rounds in self.complete(name).values()
        ]
        return torch.stack([torch.stack(rows) for rows in found]) if found else None

    def mean(self, name: str) -> Estimate | None:
        """The mean of a measure over complete pairs, by method; None if there are no such pairs."""
        values = self._stacked(name)
        if values is None:
            return None
        errors = [
            r.of(self.methods, half)
            for rounds in self.complete(name).values()
            for r in rounds
            if len(rounds) == 1 and (half := r.half_widths(name)) is not None
        ]
        return mean_value(values, torch.stack(errors) if errors else None, MEASURES[name].within)

    def rank(self, name: str) -> Estimate | None:
        """The mean place by a measure, over the rounds of complete pairs."""
        values = self._stacked(name)
        if values is None:
            return None
        places = [[ranks(row, MEASURES[name]) for row in rows] for rows in values]
        return mean_rank(torch.stack([torch.stack(rows) for rows in places]))

    def standings(self, name: str) -> "pd.DataFrame":
        """A row per method, the best mean first: mean, behind (the first one), rank, and intervals.

        `behind` is the difference from the first, compared round by round, so that what all methods
        have in common does not widen its interval, which is over seeds; NaN with a single seed.
        """
        import pandas as pd

        mean, rank, values = self.mean(name), self.rank(name), self._stacked(name)
        if mean is None or rank is None or values is None:
            return pd.DataFrame()
        order = torch.sort(
            mean.mean, descending=MEASURES[name].more_is_better, stable=True
        ).indices.tolist()
        behind = values - values[:, :, order[:1]]
        low, high = student(behind.mean(0))
        columns = {
            "mean": mean.mean,
            "low": mean.low,
            "high": mean.high,
            "behind": behind.mean((0, 1)),
            "behind_low": low,
            "behind_high": high,
            "rank": rank.mean,
            "rank_low": rank.low,
            "rank_high": rank.high,
        }
        frame = pd.DataFrame({key: column.double().numpy() for key, column in columns.items()})
        frame.insert(0, "method", list(self.methods))
        return frame.loc[order].reset_index(drop=True)

    @property
    def order(self) -> list[str]:
        """The methods by their mean place over CPR, CMD and N, the best first."""
        found = [rank.mean for name in OVERALL if (rank := self.rank(name)) is not None]
        if not found:
            return list(self.methods)
        order = torch.sort(torch.stack(found).mean(0), stable=True).indices.tolist()
        return [self.methods[i] for i in order]

    @property
    def passes(self) -> dict[str, tuple[float, float]]:
        """The least and the most forward passes per ranking prompt, by method."""
        found: dict[str, list[float]] = {method: [] for method in self.methods}
        for r in self.rounds:
            for method, passes in zip(r.methods, r.passes.tolist(), strict=True):
                found[method].append(passes)
        return {method: (min(row), max(row)) for method, row in found.items()}

    def title(self, name: str) -> str:
        """What a measure is called: N(0.9) has the threshold."""
        return f"N({self.threshold:g})" if name == "needed_share" else MEASURES[name].title

    def frame(self) -> "pd.DataFrame":
        """A tidy frame: model, task, seed, method, measure, value, low, high, rank.

        Measures: cpr, cmd, needed (heads), needed_share, auroc, passes. low and high are the 95%
        interval over judging prompts, of cpr and cmd.
        """
        import pandas as pd

        nothing, rows = float("nan"), []
        for r in self.rounds:
            for name in ("cpr", "cmd", "needed", "needed_share", "auroc", "passes"):
                values = r.values(name)
                if values is None:
                    continue
                half = r.half_widths(name)
                places = ranks(values, MEASURES[name]).tolist() if name in MEASURES else []
                for i, (method, value) in enumerate(zip(r.methods, values.tolist(), strict=True)):
                    by = nothing if half is None else half[i].item()
                    place = places[i] if places else nothing
                    row = (method, name, value, value - by, value + by, place)
                    rows.append((*r.pair, r.seed, *row))
        columns = ["model", "task", "seed", "method", "measure", "value", "low", "high", "rank"]
        return pd.DataFrame(rows, columns=pd.Index(columns))

    def by_pair(self, name: str) -> "pd.DataFrame":
        """A row per model and task: the mean over seeds of every method."""
        import pandas as pd

        rows = []
        for pair, rounds in self.pairs.items():
            found: dict[str, Any] = dict(zip(("model", "task"), pair, strict=True))
            for method in self.order:
                here = [
                    values[r.methods.index(method)].item()
                    for r in rounds
                    if method in r.methods and (values := r.values(name)) is not None
                ]
                found[method] = sum(here) / len(here) if here else float("nan")
            rows.append(found)
        kept = [row for row in rows if any(row[method] == row[method] for method in self.order)]
        return pd.DataFrame(kept)

    @property
    def headline(self) -> dict[str, Any]:
        """The first by every measure, and the numbers of every method over complete pairs."""
        parts: dict[str, dict[str, Any]] = {method: {} for method in self.methods}
        first: dict[str, str] = {}
        for name in MEASURES:
            mean, rank = self.mean(name), self.rank(name)
            if mean is None or rank is None:
                continue
            for i, method in enumerate(self.methods):
                for what, found in ((name, mean), (f"{name}_rank", rank)):
                    ends = found.low[i].item(), found.high[i].item()
                    parts[method][what] = found.mean[i].item()
                    parts[method] |= {f"{what}_low": ends[0], f"{what}_high": ends[1]}
            first[name] = self.methods[int(rank.mean.argmin())]
        for method, (least, most) in self.passes.items():
            parts[method] |= {"passes_least": least, "passes_most": most}
        sizes = {"pairs": len(self.complete("cpr")), "seeds": len(self.seeds)}
        return {**sizes, "first": first, "parts": parts}

    @property
    def sentence(self) -> str:
        """Who is first by every measure."""
        words = []
        for name in MEASURES:
            rank, pairs = self.rank(name), len(self.complete(name))
            if rank is None:
                continue
            i = int(rank.mean.argmin())
            ends = f", 95% {rank.low[i]:.1f} to {rank.high[i]:.1f}" if rank.over else ""
            places = zip(self.methods, rank.mean.tolist(), strict=True)
            ties = [method for method, place in places if place == rank.mean[i].item()]
            words.append(
                f"by {self.title(name)} {in_words(ties)} (mean rank {rank.mean[i]:.1f}{ends}; "
                f"{pairs} pair{'s' * (pairs != 1)})"
            )
        if not words:
            return "No pair of model and task has every method with every seed: no standings."
        count = f"{len(self.methods)} methods, {len(self.seeds)} seed{'s' * (len(self.seeds) > 1)}"
        return f"First of {count}, over pairs of model and task: {'; '.join(words)}."

    @property
    def text(self) -> str:
        """A line per method, then the sentence."""
        names = [name for name in MEASURES if self.mean(name) is not None]
        means: Mapping[str, Any] = {name: self.mean(name) for name in names}
        wide = max(14, *(len(method) + 1 for method in self.methods))
        lines = [
            f"{'':<{wide}}{''.join(f'{self.title(name):>10}' for name in names)}{'passes':>10}"
        ]
        for method in self.order:
            i = self.methods.index(method)
            cells = "".join(f"{means[name].mean[i].item():>10.3f}" for name in names)
            lines.append(f"{method:<{wide}}{cells}{self.passes[method][1]:>10.0f}")
        return "\n".join([*lines, self.sentence])

    @property
    def warnings(self) -> tuple[str, ...]:
        """What could not be measured, what may be chance, and what one or two seeds cannot say."""
        return *self._not_measured, *self._by_chance, *self._few_seeds

    @property
    def _not_measured(self) -> list[str]:
        """What was left out, once for all seeds, with the reason at the first of them."""
        rows = sorted(self.left_out, key=lambda part: (part.what, part.seed))
        found = []
        for what, group in groupby(rows, key=lambda part: part.what):
            parts = list(group)
            seeds = [str(part.seed) for part in parts]
            count = f"seed{'s' * (len(seeds) > 1)} {in_words(seeds)}"
            found.append(f"Left out: {what} ({count}): {parts[0].why}")
        return found

    @property
    def _by_chance(self) -> list[str]:
        """Rounds with an effect to explain that may be 0."""
        weak: dict[str, list[str]] = {}
        for r in self.rounds:
            if r.gap.mean().abs() <= 2 * r.gap.std() / r.judged_on**0.5:
                weak.setdefault(", ".join(r.pair), []).append(str(r.seed))
        return [
            f"{pair} (seed{'s' * (len(seeds) > 1)} {in_words(seeds)}): the effect to explain may "
            "be 0, and shares of it then mean nothing. Use more prompts or another task."
            for pair, seeds in weak.items()
        ]

    @property
    def _few_seeds(self) -> list[str]:
        if len(self.seeds) == 2:
            return [
                "Intervals over two seeds are very wide: two means say little about their spread. "
                "Use --seeds 3 or more."
            ]
        if len(self.seeds) > 2:
            return []
        return [
            "With a single seed the intervals of CPR and CMD are over judging prompts, not over "
            "other prompts to rank the heads on, and N and AUROC have none. Use --seeds 3 or more."
        ]


def _twice(rounds: tuple[Round, ...]) -> str:
    """A round that is there twice, in words; empty if there is none."""
    seen: set[tuple[str, str, int]] = set()
    for r in rounds:
        if (key := (*r.pair, r.seed)) in seen:
            return f"{r.task} on {r.model} with seed {r.seed}"
        seen.add(key)
    return ""
