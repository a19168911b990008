"""From effects to a circuit: which heads do the task, and how much of it they explain.

1. Half of the prompts rank the heads, with any scoring method.
2. The other half evaluate the ranking: its curve f(k), next to random rankings.
3. The circuit is the shortest prefix of the ranking that reaches the threshold on that curve, or
   `k` heads, or a smaller set found by a search on the ranking prompts.
4. It is evaluated (what is left without it, what each head contributes) and described: head types,
   the attention of the strongest heads on a prompt, the strongest paths between its heads.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jaxtyping import Float
from torch import Tensor

from mechheads import metrics
from mechheads.errors import MechheadsError, unknown
from mechheads.heads import name_of
from mechheads.models.model import Model, model_name, parallel_blocks, shape_of
from mechheads.observe.edges import EdgeCounts, count_edges
from mechheads.observe.evaluation import Evaluation, evaluate
from mechheads.observe.head_types import HeadTypes, head_types
from mechheads.observe.patterns import attend_heads
from mechheads.prompts import Prompts, check_prompts
from mechheads.runs.result import Result
from mechheads.scoring.effects import HeadEffects
from mechheads.scoring.path_patching import EdgeEffects, edge_attribution
from mechheads.scoring.registry import find, score_heads

from .circuit import Circuit, Head
from .curve import Curve, check_draws, explained_effect_curve, needed
from .literature import published_for
from .search import check_search, search_heads
from .stability import resampled_overlap
from .validation import Faithfulness, faithfulness

if TYPE_CHECKING:
    import pandas as pd

SHOWN = 64  # tokens of the sample prompt
# What heads outside a circuit can be replaced by.
WHOLE = ("corrupt", "zero", "mean", "position_mean")


@dataclass(frozen=True)
class Sample:
    """The attention of some heads on one prompt."""

    prompt: str
    tokens: tuple[str, ...]
    heads: tuple[Head, ...]
    weights: Float[Tensor, "head query key"]


@dataclass(frozen=True)
class Discovery(Result):
    """The full result; `overlap` is the stability of the top heads, at the size of the circuit.

    `examples` are prompts as (clean, corrupt, answer, wrong answer); `shape` has facts about the
    model beyond layers and heads.
    """

    effects: HeadEffects
    curve: Curve
    faithfulness: Faithfulness
    evaluation: Evaluation
    types: HeadTypes
    edges: EdgeCounts
    paths: EdgeEffects | None
    sample: Sample
    examples: tuple[tuple[str, str, str, str], ...]
    threshold: float
    overlap: float
    shape: Mapping[str, Any]
    search: str = "top"
    signed: bool = False

    def check(self) -> None:
        """Raise a ValueError if the parts of a stored discovery do not belong together."""
        layers, heads = self.effects.values.shape[1:]
        every = [(layer, head) for layer in range(layers) for head in range(heads)]
        grids = [self.edges.used.shape[1:], *(s.shape for s in self.types.scores.values())]
        if sorted(self.curve.ranking) != every or any(g != (layers, heads) for g in grids):
            raise ValueError("its parts are of models with different heads")
        if not {*self.faithfulness.heads, *self.sample.heads} <= set(every):
            raise ValueError("it names a head that the model does not have")
        if not 0 < self.threshold <= 1 or not self.sample.tokens or not self.types.scores:
            raise ValueError("its threshold, sample or types are impossible")
        if len(self.sample.weights) != len(self.sample.heads):
            raise ValueError("its sample has other heads than patterns")
        if self.edges.used.shape[0] != self.curve.values.shape[1]:
            raise ValueError("its edges are of other prompts than its curve")

    @property
    def circuit(self) -> Circuit:
        """The heads kept, with their published roles where there are any."""
        task, model = self.curve.task, self.curve.model
        roles, heads = self.roles, self.faithfulness.heads
        return Circuit(
            f"{task} {self.search} {len(heads)}",
            heads,
            task,
            model,
            {head: roles[head] for head in heads if head in roles},
        )

    @property
    def roles(self) -> dict[Head, str]:
        """Published roles of the model's heads in this task, where there are any."""
        known = published_for(self.curve.task, self.curve.model)
        return {head: role for c in reversed(known) for head, role in c.roles.items()}

    @property
    def needed(self) -> int:
        """The fewest heads of the ranking that reach the threshold."""
        return self.curve.needed(self.threshold)

    @property
    def random_needed(self) -> float:
        """The same for a random ranking, on average."""
        return float(needed(self.curve.random_curves, self.threshold).mean())

    @property
    def headline(self) -> dict[str, Any]:
        """The numbers that sum up the run."""
        low, high = self.curve.needed_interval(self.threshold)
        clean = self.evaluation.clean
        return {
            "heads": len(self.curve.ranking),
            "circuit": [name_of(*head) for head in self.faithfulness.heads],
            "threshold": self.threshold,
            "needed": self.needed,
            "needed_low": low,
            "needed_high": high,
            "needed_stays": self.curve.needed(self.threshold, stays=True),
            "needed_random": self.random_needed,
            "faithfulness": self.faithfulness.faithfulness,
            "left_without": self.faithfulness.left,
            "idle_heads": [name_of(*head) for head in self.faithfulness.idle],
            "cpr": self.curve.cpr,
            "cmd": self.curve.cmd,
            "cpr_random": self.curve.random_cpr,
            "cmd_random": self.curve.random_cmd,
            "overlap": self.overlap,
            "metric": self.curve.metric,
            "metric_clean": float(clean[self.curve.metric].mean()),
            "metric_corrupt": float(self.evaluation.corrupt[self.curve.metric].mean()),
            f"ranking_{self.effects.over}": len(self.effects.values),
            "judging_prompts": self.curve.values.shape[1],
            "accuracy": float(clean["accuracy"].mean()),
        }

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings that the model cannot do the task, or that the effect may be chance."""
        return *self.evaluation.warnings, *self.curve.warnings

    @property
    def sentence(self) -> str:
        """The result in words."""
        total, found = len(self.curve.ranking), self.headline
        strongest = name_of(*self.effects.ranking(signed=self.signed)[0])
        chosen = (
            ""
            if len(self.faithfulness.heads) == self.needed and self.search == "top"
            else f" The circuit ({self.search}) has {len(self.faithfulness.heads)} heads and "
            "explains "
            f"{self.faithfulness.faithfulness:.0%}."
        )
        return (
            f"{self.needed} of {total} heads ({self.needed / total:.0%}) explain "
            f"{self.threshold:.0%} of the {metrics.METRICS[self.curve.metric].label} of "
            f"{self.curve.model} on {self.curve.task} (95 % interval over prompts: "
            f"{found['needed_low']:.0f} to {found['needed_high']:.0f}); random rankings need "
            f"{self.random_needed:.0f} on average.{chosen} The strongest is {strongest}; without "
            f"the circuit, {self.faithfulness.left:.0%} is left."
        )

    def frame(self) -> "pd.DataFrame":
        """The curve, one row per added head."""
        return self.curve.frame()


def discover(
    model: Model,
    prompts: Prompts,
    test: Prompts | None = None,
    *,
    method: str = "patch",
    metric: str | None = None,
    threshold: float = 0.9,
    k: int | None = None,
    search: str = "top",
    signed: bool = False,
    direction: str = "noising",
    replacement: str = "corrupt",
    draws: int = 10,
    seed: int = 0,
    budget: int | None = None,
    effects: HeadEffects | None = None,
    quiet: bool = False,
    options: Mapping[str, Any] | None = None,
) -> Discovery:
    """Find the heads that do a task, and measure how much of it they explain.

    Args:
        model: what `mechheads.load` returns
        prompts: what `tasks.make` returns; they rank the heads
        test: prompts that evaluate the ranking; default: the second half of `prompts`
        method: a name in `mechheads.METHODS`; it ranks the heads
        metric: a name in `mechheads.METRICS`; default: the task's own
        threshold: the share of the effect that the circuit must explain
        k: keep this many heads instead
        search: "top" keeps the first heads of the ranking; "prune" and "greedy" find fewer, slower
        signed: rank by the signed effect instead of its size
        direction: "noising" or "denoising", for methods that have a direction
        replacement: what replaces heads not kept: "corrupt", "zero", "mean" or "position_mean"
        draws: number of random rankings to compare with
        seed: seed of the random rankings
        budget: tokens per pass, which bounds memory; default: chosen for the device
        effects: precomputed effects of the ranking prompts, used instead of `method`
        quiet: show no progress bars
        options: the method's own options

    Returns:
        Discovery: the effects, the explained-effect curve, the circuit, and how faithful, complete
        and minimal it is. Costs the method plus a pass for each of 1 + heads + 10 * draws subsets.

    >>> import circuits, mechheads, tasks
    >>> model = mechheads.load("mini")
    >>> prompts = tasks.make("ioi", model, n=64)
    >>> found = circuits.discover(model, prompts, method="attribution", quiet=True)
    >>> found.needed < found.random_needed
    True
    """
    ranking_prompts, judging = prompts.halves() if test is None else (prompts, test)
    check_sizes(len(ranking_prompts), len(judging))
    check_settings(metric=metric, search=search, threshold=threshold, draws=draws)
    if replacement not in WHOLE:
        raise unknown("replacement", replacement, WHOLE)
    every = shape_of(model).layers * shape_of(model).heads
    if k is not None and not 1 <= k <= every:
        raise MechheadsError(f"--k takes 1 to {every} heads of {model_name(model)}, got {k}.")
    if k is not None and search != "top":
        raise MechheadsError(f"--search {search} finds its own number of heads. Leave out --k.")
    shared: dict[str, Any] = {"budget": budget, "quiet": quiet}
    evaluation = evaluate(model, judging, metric, quiet=quiet)
    if effects is None:
        scoring = _options(method, direction, replacement, shared) | dict(options or {})
        effects = score_heads(model, ranking_prompts, method, metric, **scoring)
    check_effects(effects, model, ranking_prompts)
    ranking = effects.ranking(signed=signed)
    masked: dict[str, Any] = {"replacement": replacement, **shared}
    curve = explained_effect_curve(
        model, judging, ranking, metric, draws=draws, seed=seed, **masked
    )
    if k is not None:
        heads = ranking[:k]
    elif search == "top":
        heads = ranking[: curve.needed(threshold)]
    else:
        found = ranking_prompts, ranking, search, metric
        heads = search_heads(model, *found, threshold=threshold, **masked)
    circuit = Circuit("found", tuple(heads))
    overlap, _ = resampled_overlap(effects, max(1, len(heads)), signed=signed)
    return Discovery(
        effects,
        curve,
        faithfulness(model, judging, circuit, metric, **masked),
        evaluation,
        head_types(model, seed=seed),
        count_edges(model, judging, quiet=quiet),
        _paths(model, ranking_prompts, metric, shared),
        _sample(model, judging, ranking[:6]),
        tuple((p.clean, p.corrupt, p.answers[0], p.wrong[0]) for p in judging.pairs[:3]),
        threshold,
        overlap,
        {"parallel_attn_mlp": parallel_blocks(model), "d_model": shape_of(model).d_model},
        search,
        signed,
    )


def check_settings(
    *, metric: str | None = None, search: str = "top", threshold: float = 0.9, draws: int = 2
) -> None:
    """Raise an error that names what is unknown or out of range; needs no model."""
    if metric is not None:
        metrics.find(metric)
    check_search(search, threshold)
    check_draws(draws)


def check_effects(effects: HeadEffects, model: Model, prompts: Prompts) -> None:
    """Raise an error if precomputed effects are not of these prompts on this model."""
    ours = model_name(model), prompts.task, len(prompts)
    rows = len(effects.values) if effects.over == "prompts" else len(prompts)
    if (effects.model, effects.task, rows) != ours:
        raise MechheadsError(
            f"These effects are of {effects.task} on {effects.model} ({rows} prompts), not of "
            f"{prompts.task} on {ours[0]} ({len(prompts)} prompts)."
        )


def check_sizes(n: int, test: int) -> None:
    """Raise an error if there are too few prompts for intervals."""
    for flag, size in (("--n", n), ("--test", test)):
        check_prompts(flag, size)


def _options(
    method: str, direction: str, replacement: str, shared: Mapping[str, Any]
) -> dict[str, Any]:
    """The options that the method takes; an error if a direction is given but it has none."""
    own = find(method).options
    if direction != "noising" and "direction" not in own:
        raise MechheadsError(f"{method} has no direction. Leave out --direction.")
    given = {"direction": direction, "replacement": replacement, **shared}
    return {name: value for name, value in given.items() if name in own}


def _paths(
    model: Model, prompts: Prompts, metric: str | None, shared: Mapping[str, Any]
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
