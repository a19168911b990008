"""Rank the heads by several methods, and judge all rankings on the same other prompts.

1. The metric of the judging prompts with no heads and with all heads, for all methods once.
2. Every method ranks the heads on the ranking prompts.
3. All rankings, and random ones, at MIB's ten shares, in one call: where rankings begin with the
   same heads, these are measured once, and neighbouring subsets share their first layers.
4. f is below the threshold at one share and above it at the next: all k up to there are measured,
   and the first that reaches it is N, as on the whole curve.

The numbers are those of `circuits.discover` with the same prompts and method (and points "all",
where there are many heads). Random rankings are judged at MIB's shares like the others, more
closely than the band that `discover` draws; their N is interpolated between evenly spaced points.
"""

import random
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from circuits.circuit import Head, auroc
from circuits.experiment import check_settings, in_halves
from circuits.literature import published_for
from circuits.measured import check_gap, explained, explained_by_prompt, needed
from circuits.points import SHARES, TOLERANCE, mib_counts
from mechheads import metrics
from mechheads.engine.head_subsets import measure_subsets, nested
from mechheads.errors import MechheadsError
from mechheads.metrics import MetricLike
from mechheads.models.model import Model, model_name, shape_of
from mechheads.progress import stages
from mechheads.prompts import Prompts
from mechheads.scoring.registry import find, score_heads

from .board import Leaderboard
from .rounds import RANDOM, LeftOut, Round

METHODS = ("patch", "attribution", "ig", "atp", "gim", "hybrid", "direct", RANDOM)
JUDGING = "judging"  # what judging all rankings cost, beside the names of the methods
POINTS = 9  # evenly spaced head counts at which random rankings are measured, beside MIB's shares


@dataclass(frozen=True)
class Ranked:
    """A method's rankings, by signed effect and by size, and the score by which AUROC ranks."""

    by_sign: list[Head]
    by_size: list[Head]
    scores: Mapping[Head, float]


def rank_methods(
    model: Model,
    prompts: Prompts,
    test: Prompts | None = None,
    *,
    methods: "Sequence[str | Callable[..., Any]]" = METHODS,
    metric: MetricLike | None = None,
    threshold: float = 0.9,
    replacement: str = "corrupt",
    draws: int = 10,
    budget: int | None = None,
    spent: MutableMapping[str, float] | None = None,
    quiet: bool = False,
) -> Leaderboard:
    """Compare scoring methods by the circuits they find: one round of a leaderboard.

    Boards of other models, tasks and seeds can be added to it with +.

    Args:
        model: what `mechheads.load` returns
        prompts: what `tasks.make` returns; they rank the heads
        test: prompts that judge the rankings; default: the second half of `prompts`
        methods: names in `mechheads.METHODS`, your own functions, and "random", the baseline
        metric: a name in `mechheads.METRICS`, or your own function; default: the task's own
        threshold: the share of the effect that N heads must explain
        replacement: what replaces heads not kept: "corrupt", "zero", "mean" or "position_mean"
        draws: number of random rankings; they are drawn with the seed of the prompts
        budget: tokens per pass, which bounds memory; default: chosen for the device
        spent: a table to which the CPU seconds of each method, and of judging, are added
        quiet: show no progress bar

    Returns:
        Leaderboard: CPR, CMD, N and, where heads are known, AUROC of every method. Costs what the
        methods cost, and for each a pass per share of MIB and per head up to the share that reaches
        the threshold; random rankings cost draws * 19 passes at most.

    >>> import circuits, mechheads, tasks
    >>> model = mechheads.load("known/induction")
    >>> prompts = tasks.make("known/induction", model, n=16)
    >>> board = circuits.rank_methods(model, prompts, methods=["patch", "random"], quiet=True)
    >>> board.order
    ['patch', 'random']
    """
    ranking, judging = in_halves(model, prompts, test)
    check_settings(metric=metric, threshold=threshold, draws=draws)
    named: dict[str, str | Callable[..., Any]] = {}
    for method in methods:
        named[RANDOM if method == RANDOM else find(method).name] = method
    if len(named) < max(2, len(methods)):
        raise MechheadsError(
            f"A leaderboard compares two or more different methods, got {', '.join(named)}."
        )
    shared: dict[str, Any] = {"replacement": replacement, "budget": budget, "quiet": quiet}
    given = {"direction": "noising", "held_out": judging, **shared}
    size, n = shape_of(model).layers * shape_of(model).heads, len(ranking)
    options = {
        name: {key: value for key, value in given.items() if key in find(method).options}
        for name, method in named.items()
        if name != RANDOM
    }
    passes = {name: find(named[name]).passes(size, n, own) / n for name, own in options.items()}
    weights = {name: n * share for name, share in passes.items()}
    weights[JUDGING] = len(judging) * (10 + size / 4 * len(named))
    ended = {} if spent is None else spent
    found: dict[str, Ranked] = {}
    left_out: list[LeftOut] = []
    ours = model_name(model), judging.task, ranking.seed

    def measure(keep: Float[Tensor, "variant layer head"]) -> Float[Tensor, "variant prompt"]:
        return measure_subsets(model, judging, keep, metric, **shared)

    with stages("leaderboard", weights, quiet) as progress:
        grid = shape_of(model).grid
        with clocked(ended, JUDGING):
            ends = measure(torch.stack([torch.zeros(grid), torch.ones(grid)]))
            check_gap(model, judging, ends[0], ends[1])
        for name, own in options.items():
            with progress.stage(name), clocked(ended, name):
                try:
                    found[name] = _ranked(model, ranking, named[name], metric, own)
                except MechheadsError as error:
                    left_out.append(LeftOut(*ours, str(error), name))
        if len(found) + (RANDOM in named) < 2:
            raise MechheadsError(left_out[0].why)
        with progress.stage(JUDGING), clocked(ended, JUDGING):
            orders = random_orders(grid, draws if RANDOM in named else 0, ranking.seed)
            rows = _judged(measure, grid, found, orders, ends, threshold)
    kept = [name for name in named if name in rows]
    cpr, cmd, counts = zip(*(rows[name] for name in kept), strict=True)
    one = Round(
        *ours,
        metrics.choose(metric, judging).name,
        size,
        n,
        tuple(kept),
        torch.stack(cpr),
        torch.stack(cmd),
        torch.tensor(counts),
        torch.tensor([float(passes.get(name, 0.0)) for name in kept]),
        ends[1] - ends[0],
        _aurocs(judging.task, ours[0], grid, found, orders, kept),
    )
    return Leaderboard((one,), threshold, replacement, draws, tuple(left_out))


@contextmanager
def clocked(spent: MutableMapping[str, float], what: str) -> Iterator[None]:
    """Add the CPU seconds of what runs inside to a table."""
    start = time.process_time()
    yield
    spent[what] = spent.get(what, 0.0) + time.process_time() - start


def random_points(heads: int) -> list[int]:
    """Where random rankings are measured: at MIB's shares as all others, and evenly spaced."""
    even = {round(i * heads / (POINTS - 1)) for i in range(POINTS)}
    return sorted(even | set(mib_counts(heads)))


def random_orders(grid: tuple[int, int], draws: int, seed: int) -> list[list[Head]]:
    """The random rankings that `circuits.explained_effect_curve` draws with this seed."""
    every = [(layer, head) for layer in range(grid[0]) for head in range(grid[1])]
    rng = random.Random(seed)
    return [rng.sample(every, len(every)) for _ in range(draws)]


def _ranked(
    model: Model,
    prompts: Prompts,
    method: "str | Callable[..., Any]",
    metric: MetricLike | None,
    options: Mapping[str, Any],
) -> Ranked:
    """The heads in a method's orders."""
    effects = score_heads(model, prompts, method, metric, **options)
    by_sign, by_size = effects.ranking(signed=True), effects.ranking()
    return Ranked(by_sign, by_size, {head: abs(float(effects.scores[head])) for head in by_size})


def _judged(
    measure: Callable[[Tensor], Tensor],
    grid: tuple[int, int],
    found: Mapping[str, Ranked],
    orders: Sequence[list[Head]],
    ends: Float[Tensor, "end judged"],
    threshold: float,
) -> dict[str, tuple[Tensor, Tensor, float]]:
    """CPR and CMD as means over prompts, and N, of every method and of random rankings."""
    shares = mib_counts(grid[0] * grid[1])
    at = random_points(grid[0] * grid[1])
    keep = [
        nested(order, *grid)[shares] for r in found.values() for order in (r.by_sign, r.by_size)
    ]
    keep += [nested(order, *grid)[at] for order in orders]
    values = list(measure(torch.cat(keep)).split([len(part) for part in keep]))
    pairs = {name: (values[2 * i], values[2 * i + 1]) for i, name in enumerate(found)}
    bounds = {
        name: next(
            (k for k, f in zip(shares, _f(own[1], ends), strict=True) if _reaches(f, threshold)),
            shares[-1],  # all heads reach any threshold, whatever rounding says
        )
        for name, own in pairs.items()
    }
    rows: dict[str, tuple[Tensor, Tensor, float]] = {}
    before = {name: nested(found[name].by_size, *grid)[: k + 1] for name, k in bounds.items()}
    if found:
        curves = measure(torch.cat(list(before.values()))).split(list(map(len, before.values())))
        for (name, (by_sign, by_size)), own in zip(pairs.items(), curves, strict=True):
            count = float(needed(_f(own, ends)[None], threshold)[0])
            rows[name] = _cpr(by_sign, ends), _cmd(by_size, ends), count
    if orders:
        rows[RANDOM] = _random(values[2 * len(found) :], at, shares, ends, threshold)
    return rows


def _random(
    drawn: Sequence[Float[Tensor, "k judged"]],
    at: list[int],
    shares: list[int],
    ends: Float[Tensor, "end judged"],
    threshold: float,
) -> tuple[Tensor, Tensor, float]:
    """The same of random rankings, means over draws; between the points f is interpolated."""
    places = [at.index(k) for k in shares]
    every = np.arange(at[-1] + 1)
    curves = [torch.from_numpy(np.interp(every, at, _f(own, ends).numpy())) for own in drawn]
    counts = needed(torch.stack(curves).float(), threshold)
    areas = [(_cpr(own[places], ends), _cmd(own[places], ends)) for own in drawn]
    cpr, cmd = (torch.stack(part).mean(0) for part in zip(*areas, strict=True))
    return cpr, cmd, float(counts.mean())


def _f(values: Float[Tensor, "k judged"], ends: Float[Tensor, "end judged"]) -> Float[Tensor, " k"]:
    """f of some subsets."""
    return explained(torch.cat([ends[:1], values, ends[1:]]).mean(1))[1:-1]


def _reaches(f: Tensor, threshold: float) -> bool:
    """As `needed` decides it."""
    return float(f) >= threshold - TOLERANCE


def _cpr(values: Float[Tensor, "share judged"], ends: Tensor) -> Float[Tensor, " judged"]:
    """The area under f, as a mean over prompts."""
    return _area(explained_by_prompt(torch.cat([ends[:1], values, ends[1:]]))[1:-1])


def _cmd(values: Float[Tensor, "share judged"], ends: Tensor) -> Float[Tensor, " judged"]:
    """The area between f and 1, as a mean over prompts: of f < 1 as 1 - f, of the rest as f - 1."""
    shares = explained_by_prompt(torch.cat([ends[:1], values, ends[1:]]))[1:-1]
    side = torch.sign(1 - _f(values, ends))
    return _area(side[:, None] * (1 - shares))


def _area(at_shares: Float[Tensor, "share judged"]) -> Float[Tensor, " judged"]:
    """Trapezoid rule over MIB's shares of the heads."""
    return torch.trapezoid(at_shares, torch.tensor(SHARES), dim=0)


def _aurocs(
    task: str,
    model: str,
    grid: tuple[int, int],
    found: Mapping[str, Ranked],
    orders: Sequence[list[Head]],
    methods: Sequence[str],
) -> Float[Tensor, " method"] | None:
    """AUROC against the known heads, mean over published circuits; None if there are none."""
    truths = published_for(task, model, grid)
    if not truths:
        return None
    drawn = [{head: -float(i) for i, head in enumerate(order)} for order in orders]
    tables = [drawn if name == RANDOM else [found[name].scores] for name in methods]
    each = [[auroc(scores, truth) for scores in table for truth in truths] for table in tables]
    return torch.tensor([sum(row) / len(row) for row in each])
