"""How much of the metric the first n edges of a ranking explain.

f(n) = (m(first n kept) - m(none kept)) / (m(all kept) - m(none kept)). An edge leads from a head to
the query, key or value of later heads, to an MLP or to the logits; of an edge that is not kept, the
receiver sees what its sender writes in the corrupted run (mechheads/engine/edge_subsets.py).

1. f is measured at MIB's shares and at numbers of edges that are evenly spaced on a log scale.
2. The gap in which f first reaches the threshold is halved until N is exact: n - 1 edges, measured,
   do not reach it, n do. Elsewhere f is linear between its points. Where it goes up and down within
   a gap of the grid, an earlier crossing may be missed.
3. Random rankings of all edges are measured at fewer points.

CPR and CMD are MIB's areas, of the rankings by signed effect and by size. MIB's own graph also has
the edges that leave the embeddings and MLPs; here they are always kept.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuits.curve import check_draws
from circuits.measured import MeasuredCurve, check_gap, explained, mib_area
from circuits.points import SHARES, TOLERANCE, mib_counts
from circuits.search import check_search
from mechheads import metrics
from mechheads.engine.edge_graph import EdgeGraph
from mechheads.engine.edge_subsets import graph_of, measure_edges
from mechheads.engine.paired_runs import REPLACEMENTS
from mechheads.errors import MechheadsError
from mechheads.metrics import MetricLike
from mechheads.models.model import Model, model_name, shape_of
from mechheads.progress import bar
from mechheads.prompts import Prompts
from mechheads.scoring.edge_attribution import EdgeEffects
from mechheads.scoring.statistics import ends

if TYPE_CHECKING:
    import pandas as pd

# Random rankings are measured at these shares too: most of them rise late.
LATE = (0.3, 0.7, 0.8, 0.9, 0.95)


@dataclass(frozen=True)
class EdgeCurve(MeasuredCurve):
    """The metric of every prompt with the first n edges of the ranking kept, for each n in `at`.

    `ranking` holds every edge of the graph once, as sender * receivers + receiver.
    `random_explained` is f of random rankings at `random_at`. `by_sign` and `by_size` are the
    metric with MIB's shares of the edges kept, ranked by signed effect and by size.
    """

    task: str
    model: str
    metric: str
    graph: EdgeGraph
    ranking: Int[Tensor, " edge"]
    at: tuple[int, ...]
    values: Float[Tensor, "point prompt"]
    random_explained: Float[Tensor, "draw random_point"]
    random_at: tuple[int, ...]
    by_sign: Float[Tensor, "share prompt"]
    by_size: Float[Tensor, "share prompt"]
    settings: Mapping[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        """Raise a ValueError if a stored curve cannot be one."""
        metrics.check_name(self.metric)
        self.graph.check()
        total = len(self.ranking)
        if total != self.graph.count or not torch.equal(
            self.ranking.sort().values, self.graph.edges
        ):
            raise ValueError("its ranking does not have every edge once")
        for points, values in (
            (self.at, len(self.values)),
            (self.random_at, self.random_explained.shape[1]),
        ):
            if list(points) != sorted(set(points)) or (points[0], points[-1]) != (0, total):
                raise ValueError("it was measured at impossible points")
            if len(points) != values:
                raise ValueError("its points do not match its values")
        if not set(mib_counts(total)) <= set(self.random_at):
            raise ValueError("its random rankings lack some of MIB's shares")
        if {len(self.by_sign), len(self.by_size)} != {len(SHARES)}:
            raise ValueError(f"it lacks some of MIB's {len(SHARES)} shares")
        if self.settings.get("replacement") not in REPLACEMENTS:
            raise ValueError("its settings lack the replacement")

    def needed(self, threshold: float = 0.9, *, stays: bool = False) -> int:
        """The fewest edges with which f reaches the threshold, or from which on it stays there."""
        return int(needed(self.explained[None], self.at, threshold, stays=stays)[0])

    def needed_draws(self, threshold: float = 0.9) -> Float[Tensor, " draw"]:
        """`needed` in bootstrap samples of the prompts, from linear f between the points."""
        return needed(self.resampled(), self.at, threshold)

    def needed_interval(self, threshold: float = 0.9, level: float = 0.95) -> tuple[float, float]:
        """Bootstrap interval of `needed`, over prompts."""
        low, high = ends(self.needed_draws(threshold), level)
        return float(low), float(high)

    def random_needed(self, threshold: float = 0.9) -> float:
        """`needed` of random rankings, on average."""
        return float(needed(self.random_explained, self.random_at, threshold).mean())

    def parts(self, n: int) -> dict[str, int]:
        """How many of the first n edges lead to q, k, v, MLPs and the logits."""
        found = [self.graph.ends(edge)[1] for edge in self.ranking[:n].tolist()]
        return {part: found.count(part) for part in ("q", "k", "v", "mlp", "logits")}

    def senders(self, n: int) -> list[tuple[int, int]]:
        """The heads that at least one of the first n edges leaves."""
        return sorted({self.graph.ends(edge)[0] for edge in self.ranking[:n].tolist()})

    @property
    def cpr(self) -> float:
        """MIB's CPR: area under f of the ranking by signed effect; higher is better."""
        return mib_area(self._at_shares(self.by_sign))

    @property
    def cmd(self) -> float:
        """MIB's CMD: area between f and 1 of the ranking by size; lower is better, 0 is best."""
        return mib_area((1 - self._at_shares(self.by_size)).abs())

    @property
    def random_cpr(self) -> float:
        """The area under f of random rankings, on average."""
        return float(np.mean([mib_area(row) for row in self._random_at_shares]))

    @property
    def random_cmd(self) -> float:
        """The area between f and 1 of random rankings, on average."""
        return float(np.mean([mib_area((1 - row).abs()) for row in self._random_at_shares]))

    @property
    def _random_at_shares(self) -> Float[Tensor, "draw share"]:
        counts = mib_counts(self.random_at[-1])
        return self.random_explained[:, [self.random_at.index(n) for n in counts]]

    def _at_shares(self, values: Float[Tensor, "share prompt"]) -> Float[Tensor, " share"]:
        """f at MIB's shares."""
        none, whole = self.values[0].mean(), self.values[-1].mean()
        return explained(torch.stack([none, *values.mean(1), whole]))[1:-1]

    @property
    def headline(self) -> dict[str, Any]:
        """The numbers that sum it up."""
        return {"needed": self.needed(), "cpr": self.cpr, "cmd": self.cmd}

    @property
    def sentence(self) -> str:
        """The same in words."""
        return (
            f"The first {self.needed():,} of {len(self.ranking):,} edges explain 90% of "
            f"{self.task} on {self.model}."
        )

    def frame(self) -> "pd.DataFrame":
        """k (edges kept), explained with its interval, and the same for random rankings.

        Random rankings are interpolated linearly.
        """
        import pandas as pd

        low, high = self.interval()
        rows = [np.interp(self.at, self.random_at, row) for row in self.random_explained.numpy()]
        drawn = torch.from_numpy(np.stack(rows)).float()
        random_low, random_high = ends(drawn)
        columns = {
            "explained": self.explained,
            "ci_low": low,
            "ci_high": high,
            "random_mean": drawn.mean(0),
            "random_low": random_low,
            "random_high": random_high,
        }
        return pd.DataFrame({"k": self.at} | {name: x.numpy() for name, x in columns.items()})


def edge_curve(
    model: Model,
    prompts: Prompts,
    effects: EdgeEffects,
    metric: MetricLike | None = None,
    *,
    threshold: float = 0.9,
    signed: bool = False,
    replacement: str = "corrupt",
    draws: int = 10,
    points: int = 40,
    seed: int = 0,
    budget: int | None = None,
    quiet: bool = False,
) -> EdgeCurve:
    """Keep the first n edges of a ranking, for many n, and measure what they explain.

    Args:
        model: what `mechheads.load` returns
        prompts: what `tasks.make` returns; use other prompts than those that ranked the edges
        effects: what `mechheads.edge_attribution` returns; it ranks the edges
        metric: a name in `mechheads.METRICS`, or your own function; default: the task's own
        threshold: the share of the effect around which f is measured edge by edge
        signed: rank by the signed effect instead of its size
        replacement: what a receiver sees of an edge that is not kept: the sender's write in the
            "corrupt" run, or with its output at "zero", its "mean" or its "position_mean"
        draws: number of random rankings to compare with
        points: numbers of edges, evenly spaced on a log scale, at which f is measured
        seed: seed of the random rankings
        budget: tokens per pass, which bounds memory; default: chosen for the device
        quiet: show no progress bar

    Returns:
        EdgeCurve: f(n) from 0 (no edges) to 1 (all edges). Costs two to three forward passes for
        each of about 70 + 15 * draws sets of edges.

    >>> import circuits, mechheads, tasks
    >>> model = mechheads.load("mini")
    >>> ranking, judging = tasks.make("ioi", model, n=16).halves()
    >>> effects = mechheads.edge_attribution(model, ranking, steps=5, quiet=True)
    >>> curve = circuits.edge_curve(model, judging, effects, draws=2, quiet=True)
    >>> curve.explained[[0, -1]].tolist()
    [0.0, 1.0]
    """
    check_search("top", threshold)
    check_draws(draws)
    if points < 2:
        raise MechheadsError(f"points must be 2 or more, got {points}.")
    graph = graph_of(model)
    if shape_of(model).grid != next(iter(effects.values.values())).shape[2:]:
        raise MechheadsError(f"These effects are not of {model_name(model)}. Compute them again.")
    total, shares = graph.count, mib_counts(graph.count)
    scores = effects.by_receiver(graph).flatten()[graph.edges]
    by_sign, by_size = (
        graph.ranks(graph.edges[values.argsort(descending=True, stable=True)])
        for values in (scores, scores.abs())
    )
    own = by_sign if signed else by_size
    spaced = {round(total ** (i / (points - 1))) for i in range(points)}
    at = sorted({0, total, *shares, *spaced})
    random_at = random_points(total)
    halvings = max(b - a for a, b in pairwise(at)).bit_length()
    work = len(at) + halvings + len(shares) + draws * len(random_at)
    with bar(work, "Sets of edges", quiet) as progress:

        def measured(ranks: Tensor, counts: Sequence[int], size: int | None = None) -> Tensor:
            with progress.part(len(counts) if size is None else size):
                return measure_edges(
                    model,
                    prompts,
                    ranks,
                    counts,
                    metric,
                    replacement=replacement,
                    budget=budget,
                    quiet=True,
                )

        values = dict(zip(at, measured(own, at), strict=True))
        check_gap(model, prompts, values[0], values[total])
        while (middle := _unmeasured(values, threshold)) is not None:
            values[middle] = measured(own, [middle], 0)[0]
        other = measured(by_size if signed else by_sign, shares, len(shares) + halvings)
        generator = torch.Generator().manual_seed(seed)
        orders = [graph.edges[torch.randperm(total, generator=generator)] for _ in range(draws)]
        drawn = [measured(graph.ranks(order), random_at).mean(1) for order in orders]
    drawn_here = torch.stack([values[n] for n in shares])
    return EdgeCurve(
        prompts.task,
        model_name(model),
        metrics.choose(metric, prompts).name,
        graph,
        graph.in_order(own),
        tuple(sorted(values)),
        torch.stack([values[n] for n in sorted(values)]),
        explained(torch.stack(drawn)),
        tuple(random_at),
        drawn_here if signed else other,
        other if signed else drawn_here,
        {"replacement": replacement, "draws": draws, "seed": seed, "signed": signed},
    )


def _unmeasured(values: Mapping[int, Float[Tensor, " prompt"]], threshold: float) -> int | None:
    """The middle of the gap in which f first reaches the threshold; None if it has no room."""
    at = sorted(values)
    f = explained(torch.stack([values[n] for n in at]).mean(1))
    reached = max(1, int((f >= threshold - TOLERANCE).float().argmax()))
    middle = (at[reached - 1] + at[reached]) // 2
    return middle if middle > at[reached - 1] else None


def needed(
    curves: Float[Tensor, "draw point"],
    at: Sequence[int],
    threshold: float,
    *,
    stays: bool = False,
) -> Float[Tensor, " draw"]:
    """For each curve, the fewest edges that reach the threshold, or from which it stays reached.

    f is linear between the points. All edges if none reach it; NaN if the curve is not finite.
    """
    curves, places = curves.double(), torch.tensor(at, dtype=torch.double)
    above = curves >= threshold - TOLERANCE
    above[:, -1] = True
    if stays:
        above = above.flip(1).cummin(1).values.flip(1)
    high = above.double().argmax(1)
    low = (high - 1).clamp(min=0)
    f_low, f_high = (curves.gather(1, i[:, None])[:, 0] for i in (low, high))
    share = ((threshold - f_low) / (f_high - f_low)).nan_to_num(1.0).clamp(0, 1)
    found = places[low] + (share * (places[high] - places[low]) - TOLERANCE).ceil()
    return found.where(curves.isfinite().all(1), torch.nan).float()


def random_points(total: int) -> list[int]:
    """The numbers of edges at which random rankings are measured."""
    return sorted({0, *mib_counts(total), *(round(share * total) for share in LATE)})
