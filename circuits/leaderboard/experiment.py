"""Rank the heads by several methods, and judge all rankings on the same other prompts.

1. The metric of the judging prompts with no heads and with all heads, for all methods once.
2. Every method ranks the heads on the ranking prompts.
3. Every ranking has its curve, as in `circuits.discover`: N is read off it, CPR and CMD are those
   of its two orders. What several curves have in common, such as the same first heads or the random
   rankings of their bands, is measured once.
4. Random rankings are judged at MIB's shares like the others, more closely than the band that
   `discover` draws; their N is interpolated between evenly spaced points.

The numbers are those of `circuits.discover` with the same prompts, method and seed.
"""

import random
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from circuits.circuit import Head, auroc
from circuits.curve import Curve, explained_effect_curve
from circuits.experiment import check_settings, in_halves
from circuits.literature import published_for
from circuits.measured import check_gap, explained, explained_by_prompt, needed
from circuits.points import SHARES, curve_points, mib_counts
from mechheads import metrics
from mechheads.engine.head_subsets import nested
from mechheads.engine.subset_table import SubsetTable
from mechheads.errors import MechheadsError
from mechheads.metrics import MetricLike
from mechheads.models.model import Model, model_name, shape_of
from mechheads.progress import stages
from mechheads.prompts import Prompts
from mechheads.scoring.effects import HeadEffects
from mechheads.scoring.registry import find, score_heads

from .board import Leaderboard
from .rounds import RANDOM, LeftOut, Round

METHODS = ("patch", "attribution", "ig", "atp", "gim", "hybrid", "direct", RANDOM)
JUDGING = "judging"  # what judging all rankings cost, beside the names of the methods
POINTS = 9  # evenly spaced head counts at which random rankings are measured, beside MIB's shares


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
        methods: names in `mechheads.METHODS`, with options as in "ig:steps=10", your own functions,
            and "random", the baseline
        metric: a name in `mechheads.METRICS`, or your own function; default: the task's own
        threshold: the share of the effect that N heads must explain
        replacement: what replaces heads not kept: "corrupt", "zero", "mean" or "position_mean"
        draws: number of random rankings; they are drawn with the seed of the prompts
        budget: tokens per pass, which bounds memory; default: chosen for the device
        spent: a table to which the CPU seconds of each method, and of judging, are added
        quiet: show no progress bar

    Returns:
        Leaderboard: CPR, CMD, N and, where heads are known, AUROC of every method. Costs what the
        methods cost, and for each a curve (`circuits.explained_effect_curve`); random rankings cost
        draws * 19 passes at most.

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
    for name, method in named.items():
        if name != RANDOM:
            _ = find(method).given  # an error if an option cannot be read
    options = {
        name: {key: value for key, value in given.items() if key in find(method).options}
        for name, method in named.items()
        if name != RANDOM
    }
    passes = {name: find(named[name]).passes(size, n, own) / n for name, own in options.items()}
    weights = {name: n * share for name, share in passes.items()}
    weights[JUDGING] = len(judging) * (10 + len(curve_points(size)) / 2 * len(named))
    ended = {} if spent is None else spent
    found: dict[str, HeadEffects] = {}
    left_out: list[LeftOut] = []
    ours = model_name(model), judging.task, ranking.seed

    subsets = SubsetTable()

    def measure(keep: Float[Tensor, "variant layer head"]) -> Float[Tensor, "variant prompt"]:
        return subsets(model, judging, keep, metric, **shared)

    with stages("leaderboard", weights, quiet) as progress:
        grid = shape_of(model).grid
        with clocked(ended, JUDGING):
            ends = measure(torch.stack([torch.zeros(grid), torch.ones(grid)]))
            check_gap(model, judging, ends[0], ends[1])
        for name, own in options.items():
            with progress.stage(name), clocked(ended, name):
                try:
                    found[name] = score_heads(model, ranking, named[name], metric, **own)
                except MechheadsError as error:
                    left_out.append(LeftOut(*ours, str(error), name))
        if len(found) + (RANDOM in named) < 2:
            raise MechheadsError(left_out[0].why)
        with progress.stage(JUDGING), clocked(ended, JUDGING):
            orders = random_orders(grid, draws if RANDOM in named else 0, ranking.seed)
            rows: dict[str, tuple[Tensor, Tensor, float]] = {}
            if orders:
                rows[RANDOM] = _random(measure, orders, grid, ends, threshold)
            drawn = {"threshold": threshold, "draws": draws, "seed": ranking.seed}
            for name, effects in found.items():
                curve = explained_effect_curve(
                    model, judging, effects, metric, measure=subsets, **drawn, **shared
                )
                rows[name] = _judged(curve, threshold)
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


def _judged(curve: Curve, threshold: float) -> tuple[Tensor, Tensor, float]:
    """CPR and CMD as means over prompts, and N, of a method."""
    by_sign, by_size, ends = curve.by_sign, curve.by_size, curve.values[[0, -1]]
    assert by_sign is not None  # its ranking is of effects
    assert by_size is not None
    return _cpr(by_sign, ends), _cmd(by_size, ends), float(curve.needed(threshold))


def _random(
    measure: Callable[[Tensor], Tensor],
    orders: Sequence[list[Head]],
    grid: tuple[int, int],
    ends: Float[Tensor, "end judged"],
    threshold: float,
) -> tuple[Tensor, Tensor, float]:
    """The same of random rankings, means over draws; between the points f is interpolated."""
    heads = grid[0] * grid[1]
    at, every = random_points(heads), np.arange(heads + 1)
    places = [at.index(k) for k in mib_counts(heads)]
    drawn = measure(torch.cat([nested(order, *grid)[at] for order in orders])).split(len(at))
    curves = [torch.from_numpy(np.interp(every, at, _f(own, ends).numpy())) for own in drawn]
    counts = needed(torch.stack(curves).float(), threshold)
    areas = [(_cpr(own[places], ends), _cmd(own[places], ends)) for own in drawn]
    cpr, cmd = (torch.stack(part).mean(0) for part in zip(*areas, strict=True))
    return cpr, cmd, float(counts.mean())


def _f(values: Float[Tensor, "k judged"], ends: Float[Tensor, "end judged"]) -> Float[Tensor, " k"]:
    """f of some subsets."""
    return explained(torch.cat([ends[:1], values, ends[1:]]).mean(1))[1:-1]


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
    found: Mapping[str, HeadEffects],
    orders: Sequence[list[Head]],
    methods: Sequence[str],
) -> Float[Tensor, " method"] | None:
    """AUROC against the known heads, mean over published circuits; None if there are none."""
    truths = published_for(task, model, grid)
    if not truths:
        return None
    drawn = [{head: -float(i) for i, head in enumerate(order)} for order in orders]
    sizes = {name: _sizes(effects) for name, effects in found.items()}
    tables = [drawn if name == RANDOM else [sizes[name]] for name in methods]
    each = [[auroc(scores, truth) for scores in table for truth in truths] for table in tables]
    return torch.tensor([sum(row) / len(row) for row in each])


def _sizes(effects: HeadEffects) -> dict[Head, float]:
    """The size of every head's effect."""
    return {head: abs(float(effects.scores[head])) for head in effects.ranking()}
