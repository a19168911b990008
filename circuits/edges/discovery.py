"""From prompts to a circuit of edges.

1. Half of the prompts rank all edges, by edge attribution with integrated gradients
   (mechheads/scoring/edge_attribution.py).
2. The other half evaluate the ranking: its curve f(n), next to random rankings (curve.py).
3. The circuit is the shortest prefix of the ranking that reaches the threshold on that curve.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from circuits.circuit import Head
from circuits.discovery import Examples
from circuits.experiment import WHOLE, check_settings, examples_of
from circuits.halves import in_halves
from circuits.points import SHARES
from mechheads.engine.edge_subsets import graph_of
from mechheads.errors import MechheadsError, unknown
from mechheads.heads import name_of
from mechheads.metrics import MetricLike, label_of
from mechheads.models.model import Model, is_gated
from mechheads.observe.evaluation import Evaluation, evaluate
from mechheads.progress import stages
from mechheads.prompts import Prompts
from mechheads.runs.result import Result
from mechheads.scoring.edge_attribution import EdgeEffects, edge_attribution

from .curve import EdgeCurve, edge_curve, random_points

if TYPE_CHECKING:
    import pandas as pd

STEPS = 5  # of integrated gradients, as in EAP-IG
POINTS = 40
# What the parts of a receiver are called in a sentence.
TO = {"q": "queries", "k": "keys", "v": "values", "mlp": "MLPs", "logits": "the logits"}


@dataclass(frozen=True)
class EdgeDiscovery(Result):
    """The full result: what ranked the edges, their curve, and how well the model does the task.

    `ranked_on` is the number of prompts that ranked the edges, `judged_on` the digest of those that
    judged the ranking; `examples` are some of these.
    """

    effects: EdgeEffects
    curve: EdgeCurve
    evaluation: Evaluation
    examples: Examples
    threshold: float
    ranked_on: int
    judged_on: str
    sparse: bool = False

    def check(self) -> None:
        """Raise a ValueError if the parts of a stored discovery do not belong together."""
        graph = self.curve.graph
        grids = {values.shape for values in self.effects.values.values()}
        if grids != {(graph.layers, graph.heads) * 2} or set(self.effects.values) != set("qkv"):
            raise ValueError("its parts are of models with different heads")
        if not 0 < self.threshold <= 1 or self.ranked_on < 1:
            raise ValueError("its threshold or its number of prompts is impossible")

    @property
    def needed(self) -> int:
        """The fewest edges of the ranking that reach the threshold."""
        return self.curve.needed(self.threshold)

    @property
    def heads(self) -> list[Head]:
        """The heads that an edge of the circuit leaves."""
        return self.curve.senders(self.needed)

    @property
    def headline(self) -> dict[str, Any]:
        """The numbers that sum up the run."""
        curve, n = self.curve, self.needed
        low, high = curve.needed_interval(self.threshold)
        clean, corrupt = self.evaluation.clean, self.evaluation.corrupt
        return {
            "edges": len(curve.ranking),
            "threshold": self.threshold,
            "needed": n,
            "needed_low": low,
            "needed_high": high,
            "needed_stays": curve.needed(self.threshold, stays=True),
            "needed_random": curve.random_needed(self.threshold),
            "explained": float(np.interp(n, curve.at, curve.explained)),
            "needed_to": curve.parts(n),
            "heads": [name_of(*head) for head in self.heads],
            "cpr": curve.cpr,
            "cmd": curve.cmd,
            "cpr_random": curve.random_cpr,
            "cmd_random": curve.random_cmd,
            "metric": curve.metric,
            "metric_clean": float(clean[curve.metric].mean()),
            "metric_corrupt": float(corrupt[curve.metric].mean()),
            "ranking_prompts": self.ranked_on,
            "judging_prompts": curve.values.shape[1],
            "accuracy": float(clean["accuracy"].mean()),
        }

    @property
    def sentence(self) -> str:
        """The result in words."""
        found, curve = self.headline, self.curve
        to = [f"{count:,} to {TO[part]}" for part, count in found["needed_to"].items() if count]
        strongest: Any = self.strongest(1).to_dict("records")[0]
        total, all_heads = len(curve.ranking), curve.graph.senders
        return (
            f"{self.needed:,} of {total:,} edges ({100 * self.needed / total:.2g}%) explain "
            f"{self.threshold:.0%} of the {label_of(curve.metric)} of {curve.model} on "
            f"{curve.task} (95% interval over prompts: {found['needed_low']:,.0f} to "
            f"{found['needed_high']:,.0f}); random rankings need {found['needed_random']:,.0f} on "
            f"average. They leave {len(self.heads)} of {all_heads} heads: {', '.join(to)}. The "
            f"strongest is {strongest['edge']} ({strongest['effect']:+.3g}, estimated)."
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings that the model cannot do the task, or that the effect may be chance."""
        return *self.evaluation.warnings, *self.curve.warnings

    @property
    def unused(self) -> tuple[str, ...]:
        """Settings of circuits of heads."""
        return "method", "k", "search", "heads", "circuit", "effects", "direction"

    def frame(self) -> "pd.DataFrame":
        """The curve, a row per measured number of edges."""
        return self.curve.frame()

    def strongest(self, k: int | None = None) -> "pd.DataFrame":
        """The first k edges of the ranking, or those of the circuit: names, ends and effects."""
        import pandas as pd

        graph = self.curve.graph
        codes = self.curve.ranking[: self.needed if k is None else k]
        effects = self.effects.by_receiver(graph).flatten()[codes].tolist()
        rows = []
        for code, effect in zip(codes.tolist(), effects, strict=True):
            (layer, head), part, to_layer, to_head = graph.ends(code)
            name = f"{name_of(layer, head)} → {graph.receiver_name(code)}"
            rows.append((name, layer, head, part, to_layer, to_head, effect))
        names = ["edge", "from_layer", "from_head", "to", "to_layer", "to_head", "effect"]
        frame = pd.DataFrame(rows, columns=pd.Index(names))
        return frame.astype({"to_layer": "Int64", "to_head": "Int64"})


def discover_edges(
    model: Model,
    prompts: Prompts,
    test: Prompts | None = None,
    *,
    metric: MetricLike | None = None,
    threshold: float = 0.9,
    steps: int = STEPS,
    signed: bool = False,
    replacement: str = "corrupt",
    draws: int = 10,
    points: int = POINTS,
    seed: int = 0,
    budget: int | None = None,
    quiet: bool = False,
) -> EdgeDiscovery:
    """Find the edges that do a task, and measure how much of it they explain.

    An edge leads from a head to the query, key or value of later heads, to an MLP or to the logits.

    Args:
        model: what `mechheads.load` returns
        prompts: what `tasks.make` returns; they rank the edges
        test: prompts that evaluate the ranking; default: the second half of `prompts`
        metric: a name in `mechheads.METRICS` that has a gradient; default: the task's own
        threshold: the share of the effect that the circuit must explain
        steps: inputs between the corrupted and the clean prompt over which the gradient is averaged
        signed: rank by the signed effect instead of its size
        replacement: what a receiver sees of an edge that is not kept: the sender's write in the
            "corrupt" run, or with its output at "zero", its "mean" or its "position_mean"
        draws: number of random rankings to compare with
        points: numbers of edges, evenly spaced on a log scale, at which f is measured
        seed: seed of the random rankings
        budget: tokens per pass, which bounds memory; default: chosen for the device
        quiet: show no progress bars

    Returns:
        EdgeDiscovery: the effects, the explained-effect curve and the circuit. Costs `steps`
        forward and backward passes, and two to three forward passes for each of about
        70 + 15 * draws sets of edges.

    >>> import circuits, mechheads, tasks
    >>> model = mechheads.load("mini")
    >>> prompts = tasks.make("ioi", model, n=16)
    >>> found = circuits.discover_edges(model, prompts, draws=2, quiet=True)
    >>> found.needed < found.curve.random_needed()
    True
    """
    ranking_prompts, judging = in_halves(model, prompts, test)
    check_settings(metric=metric, threshold=threshold, draws=draws)
    if replacement not in WHOLE:
        raise unknown("replacement", replacement, WHOLE)
    if steps < 1:
        raise MechheadsError(f"--steps takes 1 or more, got {steps}.")
    total = graph_of(model).count
    sets = points + len(SHARES) * 2 + draws * len(random_points(total))
    weights = {
        "Evaluating": 2.0 * len(judging),
        "Ranking edges": 4.0 * steps * len(ranking_prompts),
        "Measuring the curve": 2.0 * sets * len(judging),
    }
    with stages("discover", weights, quiet) as progress:
        with progress.stage("Evaluating"):
            evaluation = evaluate(model, judging, metric, quiet=quiet)
        with progress.stage("Ranking edges"):
            effects = edge_attribution(
                model, ranking_prompts, metric, steps=steps, budget=budget, quiet=quiet
            )
        with progress.stage("Measuring the curve"):
            curve = edge_curve(
                model,
                judging,
                effects,
                metric,
                threshold=threshold,
                signed=signed,
                replacement=replacement,
                draws=draws,
                points=points,
                seed=seed,
                budget=budget,
                quiet=quiet,
            )
    return EdgeDiscovery(
        effects,
        curve,
        evaluation,
        examples_of(judging),
        threshold,
        len(ranking_prompts),
        judging.digest(),
        is_gated(model),
    )
