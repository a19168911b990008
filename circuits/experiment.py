"""From effects to a circuit: which heads do the task, and how much of it they explain.

1. Half of the prompts rank the heads, with any scoring method.
2. The other half evaluate the ranking: its curve f(k), next to random rankings.
3. The circuit is the shortest prefix of the ranking that reaches the threshold on that curve, or
   `k` heads, or a smaller set found by a search on the ranking prompts, or a given one.
4. It is evaluated (what is left without it, what each head contributes, how sure its heads are) and
   described: head types, attention on a prompt, the strongest paths between its heads.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mechheads import metrics
from mechheads.errors import MechheadsError, unknown
from mechheads.metrics import MetricLike
from mechheads.models.model import (
    Model,
    is_gated,
    model_name,
    parallel_blocks,
    shape_of,
)
from mechheads.observe.activity import head_activity
from mechheads.observe.edges import count_edges
from mechheads.observe.evaluation import evaluate
from mechheads.observe.head_types import HeadTypes, head_types
from mechheads.observe.patterns import attend_heads
from mechheads.options import check_alone
from mechheads.progress import stages
from mechheads.prompts import Prompts
from mechheads.scoring.edge_attribution import EdgeEffects, edge_attribution
from mechheads.scoring.effects import HeadEffects, given_effects
from mechheads.scoring.effects_table import EffectsTable, parse_effects, read_effects
from mechheads.scoring.registry import find, score_heads

from .certainty import alternative_circuits, inclusion, several_circuits
from .certainty.alternatives import check_alternatives
from .certainty.stability import resampled_overlap
from .circuit import Head
from .curve import check_draws, explained_effect_curve
from .discovery import GIVEN, Discovery, Examples, Sample, size_of
from .halves import check_effects, in_halves
from .planning.enough_prompts import check_n, rank_until_settled
from .planning.work import announce
from .points import AUTO, check_points
from .search import check_search, search_heads
from .validation import as_circuit, faithfulness

SHOWN = 64  # tokens of the sample prompt
# What heads outside a circuit can be replaced by.
WHOLE = ("corrupt", "zero", "mean", "position_mean")


def discover(
    model: Model,
    prompts: Prompts,
    test: Prompts | None = None,
    *,
    method: "str | Callable[..., Any]" = "auto",
    n: int | str | None = None,
    metric: MetricLike | None = None,
    threshold: float = 0.9,
    k: int | None = None,
    search: str = "top",
    circuit: Any = None,
    alternatives: int = 0,
    signed: bool = False,
    direction: str = "noising",
    replacement: str = "corrupt",
    points: int | str = AUTO,
    draws: int = 10,
    seed: int = 0,
    budget: int | None = None,
    effects: Any = None,
    measure: Callable[..., Tensor] | None = None,
    quiet: bool = False,
    options: Mapping[str, Any] | None = None,
) -> Discovery:
    """Find the heads that do a task, and measure how much of it they explain.

    With `circuit`, evaluate these heads instead, next to as many of the ranking's strongest.

    Args:
        model: what `mechheads.load` returns
        prompts: what `tasks.make` returns; they rank the heads
        test: prompts that evaluate the ranking; default: the second half of `prompts`
        method: a name in `mechheads.METHODS`, or your own function; it ranks the heads. "auto" is
            exact patching if that takes at most 10 minutes here, else "hybrid"
        n: rank on so many of the prompts; "auto": on 16 of them, doubled until the order of the
            heads is settled around the circuit's border
        metric: a name in `mechheads.METRICS`, or your own function; default: the task's own
        threshold: the share of the effect that the circuit must explain
        k: keep this many heads instead
        search: "top" keeps the first heads of the ranking; "prune" and "greedy" find fewer, slower
        circuit: your own circuit, to evaluate instead of choosing one: "L9H6,L9H9", a list of heads
            or a Circuit; a soft circuit scales its heads by their gates
        alternatives: how many alternatives of each kind to search for, see
            `circuits.alternative_circuits`; each costs about two curves
        signed: rank by the signed effect instead of its size
        direction: "noising" or "denoising", for methods that have a direction
        replacement: what replaces heads not kept: "corrupt", "zero", "mean" or "position_mean"
        points: at how many k to measure the curve: "auto" for every k up to 64 heads and about 60
            of more, "all", or a number; more are added where it may first reach the threshold
        draws: number of random rankings to compare with
        seed: seed of the random rankings
        budget: tokens per pass, which bounds memory; default: chosen for the device
        effects: precomputed effects instead of `method`: HeadEffects of the ranking prompts, a
            tensor or array of a score per layer and head, or a CSV file or frame: layer, head,
            effect
        measure: measures the subsets of the curve, see `circuits.explained_effect_curve`
        quiet: show no progress bars
        options: the method's own options

    Returns:
        Discovery: the effects, the explained-effect curve, the circuit, and how faithful, complete
        and minimal it is. Costs the method plus a pass for each point of the curve, and about as
        many for the random rankings.

    >>> import circuits, mechheads, tasks
    >>> model = mechheads.load("mini")
    >>> prompts = tasks.make("ioi", model, n=64)
    >>> found = circuits.discover(model, prompts, method="attribution", quiet=True)
    >>> found.needed < found.random_needed
    True
    """
    ranking_prompts, judging = in_halves(model, prompts, test)
    ranking_prompts = check_n(n, ranking_prompts)
    check_settings(
        metric=metric,
        search=search,
        threshold=threshold,
        points=points,
        draws=draws,
        alternatives=alternatives,
    )
    if replacement not in WHOLE:
        raise unknown("replacement", replacement, WHOLE)
    every = shape_of(model).layers * shape_of(model).heads
    if k is not None and not 1 <= k <= every:
        raise MechheadsError(f"--k takes 1 to {every} heads of {model_name(model)}, got {k}.")
    if k is not None and search != "top":
        raise MechheadsError(f"--search {search} finds its own number of heads. Leave out --k.")
    own = None if circuit is None else as_circuit(model, circuit)
    if own is not None:
        why = "a circuit is either given or chosen"
        check_alone("--circuit", why, {"k": k, "search": search}, {"k": None, "search": "top"})
    scores = _scores(model, effects)
    shared: dict[str, Any] = {"budget": budget, "quiet": quiet}
    masked: dict[str, Any] = {"replacement": replacement, **shared}
    scoring: dict[str, Any] = {}
    if effects is None:
        given = {"direction": direction, "replacement": replacement, "held_out": judging}
        scoring = _options(method, given | shared) | dict(options or {})
    ahead = {
        "method": method if effects is None else None,
        "scoring": scoring,
        "metric": metric,
        "replacement": replacement,
        "budget": budget,
        "points": points,
        "draws": draws,
        "k": k if own is None else len(own),
        "search": search,
        "alternatives": alternatives,
        "n": n if effects is None else None,
    }
    plan = announce(model, ranking_prompts, judging, ahead, quiet)
    unsettled = ""
    with stages("discover", plan.stages, quiet) as progress:
        with progress.stage("Evaluating"):
            evaluation = evaluate(model, judging, metric, quiet=quiet)
        with progress.stage("Ranking heads"):
            if effects is None and n == AUTO:
                wanted = {"size": k if own is None else size_of(own), "threshold": threshold}
                ranked = rank_until_settled(
                    model,
                    ranking_prompts,
                    method,
                    metric,
                    scoring=scoring,
                    signed=signed,
                    **wanted,
                    **masked,
                )
                effects, ranking_prompts, unsettled = ranked.effects, ranked.prompts, ranked.note
            elif effects is None:
                effects = score_heads(model, ranking_prompts, method, metric, **scoring)
            elif scores is not None:
                effects = given_effects(model, ranking_prompts, metric, *scores)
            check_effects(effects, model, ranking_prompts)
        ranking = effects.ranking(signed=signed)
        with progress.stage("Measuring the curve"):
            also = () if own is None else (size_of(own),)
            drawn: dict[str, Any] = {"draws": draws, "also": also, "signed": signed, "seed": seed}
            drawn |= {"threshold": threshold, "points": points, "measure": measure}
            curve = explained_effect_curve(model, judging, effects, metric, **drawn, **masked)
        with progress.stage("Choosing heads"):
            if own is not None:
                heads = list(own.heads)
            elif k is not None:
                heads = ranking[:k]
            elif search == "top":
                heads = ranking[: max(1, curve.needed(threshold))]
            else:
                found = ranking_prompts, ranking, search, metric
                heads = search_heads(model, *found, threshold=threshold, **masked)
        with progress.stage("Testing the circuit"):
            tested = faithfulness(model, judging, own or heads, metric, **masked)
        others = None
        if alternatives and len(heads) < every:
            with progress.stage("Searching alternatives"):
                both = model, ranking_prompts, effects, judging
                given = {"circuit": heads, "threshold": threshold, "signed": signed}
                others = alternative_circuits(
                    *both, n=alternatives, metric=metric, **given, **masked
                )
        with progress.stage("Counting edges"):
            edges = count_edges(model, judging, quiet=quiet)
        with progress.stage("Tracing paths"):
            paths = _paths(model, ranking_prompts, metric, shared)
        with progress.stage("Describing heads"):
            types, notes = _types(model, seed)
            notes += (unsettled,) if unsettled else ()
            if alternatives and others is None:
                notes += ("The circuit has all heads: there are no others to search.",)
            activity = head_activity(model, judging, quiet=quiet)
            sample = _sample(model, judging, (ranking if own is None else heads)[:6])
            size = len(heads) if own is None else size_of(own)
            overlap = resampled_overlap(effects, size, signed=signed)
            sure = inclusion(effects, curve, threshold, size=k, signed=signed)
            clusters = several_circuits(effects, ranking_prompts)
    return Discovery(
        effects,
        curve,
        tested,
        evaluation,
        types,
        activity,
        edges,
        paths,
        sample,
        examples_of(judging),
        threshold,
        overlap,
        {"parallel_attn_mlp": parallel_blocks(model), "d_model": shape_of(model).d_model},
        search if own is None else GIVEN,
        signed,
        judging.digest(),
        is_gated(model),
        None if own is None else own.content,
        notes,
        sure,
        clusters,
        others,
    )


def _types(model: Model, seed: int) -> tuple[HeadTypes | None, tuple[str, ...]]:
    """The head types, or a note that says why there are none."""
    try:
        return head_types(model, seed=seed), ()
    except MechheadsError as error:
        return None, (f"Head types were not measured: {error}",)


def examples_of(prompts: Prompts) -> Examples:
    """The first prompts, with an answer and a wrong one if there is any."""
    return tuple((p.clean, p.corrupt, p.answers[0], (*p.wrong, "")[0]) for p in prompts.pairs[:3])


def check_settings(
    *,
    metric: MetricLike | None = None,
    search: str = "top",
    threshold: float = 0.9,
    points: int | str = AUTO,
    draws: int = 2,
    alternatives: int = 0,
) -> None:
    """Raise an error that names what is unknown or out of range; needs no model."""
    if metric is not None:
        metrics.find(metric)
    check_search(search, threshold)
    check_points(points)
    check_draws(draws)
    check_alternatives(alternatives, least=0)


def _scores(model: Model, effects: Any) -> tuple[Tensor, str, dict[str, Any]] | None:
    """Given scores, what they are called, and where they are from; None if there are none."""
    if effects is None or isinstance(effects, HeadEffects):
        return None
    if isinstance(effects, Tensor | np.ndarray):
        return torch.as_tensor(effects), GIVEN, {GIVEN: True}
    if isinstance(effects, str | Path):
        effects = read_effects(effects)
    elif hasattr(effects, "to_csv"):
        effects = parse_effects(effects.to_csv(index=False), "the frame")
    if not isinstance(effects, EffectsTable):
        raise MechheadsError(
            f"effects takes HeadEffects, a tensor, a frame or a CSV file, got "
            f"{type(effects).__name__}."
        )
    scores = torch.tensor(effects.rows(*shape_of(model).grid, model_name(model)))
    file = Path(effects.name).name
    return scores, f"given in {file}", {GIVEN: file, "sha256": effects.sha256}


def _options(method: "str | Callable[..., Any]", given: Mapping[str, Any]) -> dict[str, Any]:
    """Those that the method takes; an error if a direction is given but it has none."""
    own = find(method).options
    if given["direction"] != "noising" and "direction" not in own:
        raise MechheadsError(f"{find(method).name} has no direction. Leave out --direction.")
    return {name: value for name, value in given.items() if name in own}


def _paths(
    model: Model, prompts: Prompts, metric: MetricLike | None, shared: Mapping[str, Any]
) -> EdgeEffects | None:
    """None if a head's output cannot be traced or the metric has no gradient."""
    try:
        return edge_attribution(model, prompts, metric, **shared)
    except MechheadsError:
        return None


def _sample(model: Model, prompts: Prompts, heads: list[Head]) -> Sample:
    """Attention on the shortest prompt; only the end of a long one is kept."""
    text = min((pair.clean for pair in prompts.pairs), key=len)
    tokens, weights = attend_heads(model, text, heads)
    return Sample(text, tuple(tokens[-SHOWN:]), tuple(heads), weights[:, -SHOWN:, -SHOWN:].clone())
