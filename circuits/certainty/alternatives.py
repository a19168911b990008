"""Could other heads do the same? Circuits that explain as much as the one that was found.

After the circuit S was found, on the ranking prompts:

1. *disjoint*: the heads outside S, by the size of their effect; their curve gives the fewest first
   heads that reach the threshold with all others replaced, S included. If none do, the best.
2. *core*: if that is not reached, the same, but keeping the heads of S that nothing replaces: those
   without which all other heads together stay below the threshold. One mask per head of S.
3. *penalised*: all heads, but the effects of heads already used count half (`penalty`), once per
   circuit that used them. The idea is that of arXiv:2605.12671: reuse costs.

The next alternative avoids, or penalises, the heads of all circuits before it. Sets of heads are
chosen on the ranking prompts alone, and then measured on the judging prompts, all through
`measure_subsets`. A ranking by single heads has a limit: a backup that acts only when S is gone has
a small effect in the full model, stands late in the ranking, and makes its circuit larger.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from circuits.circuit import Circuit, Head
from circuits.halves import check_effects, in_halves
from circuits.measured import check_gap, explained, explained_by_prompt
from circuits.points import TOLERANCE, curve_points, points_to_add
from circuits.search import check_search
from mechheads import metrics
from mechheads.engine.head_subsets import keep_only, measure_subsets
from mechheads.errors import MechheadsError
from mechheads.heads import check_heads, count_of, listed, name_of, read_heads
from mechheads.metrics import MetricLike
from mechheads.models.model import Model, model_name, shape_of
from mechheads.progress import stages
from mechheads.prompts import Prompts
from mechheads.runs.result import Result
from mechheads.scoring.effects import HeadEffects
from mechheads.scoring.statistics import bootstrap

if TYPE_CHECKING:
    import pandas as pd

HOW = ("disjoint", "core", "penalised")
TIE = 1e-3  # shares of the effect that differ by less are as good


@dataclass(frozen=True)
class Alternative:
    """Heads found instead of the circuit, `number` 1 being the first alternative of its kind.

    `searched` is f on the prompts that chose them; `reached` whether that is the threshold.
    """

    number: int
    how: str
    heads: tuple[Head, ...]
    searched: float
    reached: bool


@dataclass(frozen=True)
class Alternatives(Result):
    """Other circuits for the same task, measured on the judging prompts.

    Rows of `values`: the metric of every prompt with no heads, all heads, the circuit, and each
    alternative. `core` are the heads of the circuit that nothing replaces; None if not looked for.
    """

    task: str
    model: str
    metric: str
    threshold: float
    penalty: float
    circuit: tuple[Head, ...]
    found: tuple[Alternative, ...]
    core: tuple[Head, ...] | None
    values: Float[Tensor, "kept prompt"]

    def check(self) -> None:
        """Raise a ValueError if stored alternatives cannot be ours."""
        if len(self.values) != 3 + len(self.found) or not self.found:
            raise ValueError("its rows do not match its alternatives")
        for one in self.found:
            shared = set(one.heads) & set(self.circuit)
            if one.how not in HOW or not one.heads or (one.how == "disjoint" and shared):
                raise ValueError("an alternative is not what it says")

    @property
    def explained(self) -> Float[Tensor, " kept"]:
        """f of every row, on the judging prompts."""
        return explained(self.values.mean(1), none=0, whole=1)

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Interval of `explained` over prompts (symmetric bootstrap-t)."""
        return bootstrap(explained_by_prompt(self.values, none=0, whole=1).T, level)

    def jaccard(self, heads: Sequence[Head]) -> float:
        """Jaccard index of some heads with the circuit."""
        return Circuit("", heads).jaccard(Circuit("", self.circuit))

    @property
    def headline(self) -> dict[str, Any]:
        """Of the first of each kind: its size, what it explains, and what it shares."""
        numbers: dict[str, Any] = {}
        for one, value in zip(self.found, self.explained[3:].tolist(), strict=True):
            if one.number == 1:
                numbers |= {
                    f"{one.how}_heads": len(one.heads),
                    f"{one.how}_explained": value,
                    f"{one.how}_jaccard": self.jaccard(one.heads),
                }
        if self.core is not None:
            numbers["core_size"] = len(self.core)
        return numbers

    @property
    def sentence(self) -> str:
        """The first of each kind in words."""
        return " ".join(
            self._words(one, value)
            for one, value in zip(self.found, self.explained[3:].tolist(), strict=True)
            if one.number == 1
        )

    def _words(self, one: Alternative, value: float) -> str:
        many, said = count_of(one.heads), f"{value:z.0%}"
        explain = "explains" if len(one.heads) == 1 else "explain"
        enough = f"{self.threshold:.0%} of the effect"
        shared = len(set(one.heads) & set(self.circuit))
        if one.how == "disjoint":
            if one.reached:
                return f"Without the circuit's heads, another {many} {explain} {said}."
            return (
                f"No set of other heads was found that explains {enough}: the best, {many}, "
                f"{explain} {said}."
            )
        if one.how == "core":
            core = self.core or ()
            rest = len(one.heads) - len(core)
            most = "" if one.reached else "at most "
            return (
                f"Nothing replaces {listed(core)}: with {'it' if len(core) == 1 else 'them'} and "
                f"{rest} other head{'s' * (rest != 1)}, {most}{said} is explained."
            )
        return (
            f"With reuse penalised, {many} {explain} {said}"
            f"{'' if one.reached else f', not {enough}'}; {shared} of them "
            f"{'is' if shared == 1 else 'are'} in the circuit."
        )

    def frame(self) -> "pd.DataFrame":
        """A row per circuit, the first being the one found: heads, size, f, interval, overlap."""
        import pandas as pd

        low, high = self.interval()
        sets = [(0, "circuit", self.circuit, None, None)]
        sets += [(one.number, one.how, one.heads, one.searched, one.reached) for one in self.found]
        rows = [
            {
                "circuit": number,
                "how": how,
                "size": len(heads),
                "faithfulness": float(self.explained[2 + i]),
                "ci_low": float(low[2 + i]),
                "ci_high": float(high[2 + i]),
                "jaccard": self.jaccard(heads),
                "searched": searched,
                "reached": reached,
                "heads": ", ".join(name_of(*head) for head in heads),
            }
            for i, (number, how, heads, searched, reached) in enumerate(sets)
        ]
        return pd.DataFrame(rows)


def alternative_circuits(
    model: Model,
    prompts: Prompts,
    found: Any,
    test: Prompts | None = None,
    *,
    n: int = 1,
    penalty: float = 0.5,
    circuit: Any = None,
    threshold: float | None = None,
    metric: MetricLike | None = None,
    signed: bool | None = None,
    replacement: str | None = None,
    budget: int | None = None,
    quiet: bool = False,
) -> Alternatives:
    """Search for circuits of other heads that explain as much as the one found.

    Args:
        model: what `mechheads.load` returns
        prompts: the prompts given to `circuits.discover`, or those that the effects are of if you
            also give `test`
        found: what `circuits.discover` returns; or HeadEffects of the ranking prompts, and then the
            circuit is the shortest prefix of their ranking that reaches the threshold on these
        test: prompts that judge; default: the second half of `prompts`
        n: how many alternatives of each kind to search for
        penalty: what the effect of a used head is multiplied by where reuse is penalised, 0 to 1
        circuit: the circuit to find alternatives to, instead of the one found: "L9H6,L9H9", a list
            of heads or a Circuit
        threshold: the share of the effect to explain; default: that of the discovery, or 0.9
        metric: a name in `mechheads.METRICS`, or your own function; default: the effects' own
        signed: rank by the signed effect; default: as the discovery did
        replacement: what replaces heads not kept; default: as in the discovery, or "corrupt"
        budget: tokens per pass, which bounds memory; default: chosen for the device
        quiet: show no progress bar

    Returns:
        Alternatives: per alternative, its heads, what they explain of the judging prompts with an
        interval, and their overlap with the circuit. Costs a curve per alternative and kind on the
        ranking prompts, and a pass per head of the circuit if the disjoint search fails.

    >>> import circuits, mechheads, tasks
    >>> model = mechheads.load("known/redundant")
    >>> prompts = tasks.make("known/redundant", model, n=16)
    >>> found = circuits.discover(model, prompts, quiet=True)
    >>> found.circuit.heads  # the induction head, and one of two copies
    ((1, 1), (0, 0))
    >>> circuits.alternative_circuits(model, prompts, found, quiet=True).frame().heads.tolist()[-1]
    'L1H1, L0H2'
    """
    effects: HeadEffects = getattr(found, "effects", found)
    if not isinstance(effects, HeadEffects):
        raise MechheadsError(
            f"Expected what circuits.discover or mechheads.score_heads returns, not "
            f"{type(found).__name__}."
        )
    ranking_prompts, judging = in_halves(model, prompts, test)
    check_effects(effects, model, ranking_prompts)
    check_alternatives(n, penalty)
    if effects is not found:
        threshold = found.threshold if threshold is None else threshold
        signed = found.signed if signed is None else signed
        replacement = replacement or found.curve.settings["replacement"]
        circuit = found.circuit if circuit is None else circuit
    threshold, signed = 0.9 if threshold is None else threshold, bool(signed)
    check_search("top", threshold)
    metric = effects.metric if metric is None else metric
    layers, heads = shape_of(model).grid
    masked: dict[str, Any] = {"replacement": replacement or "corrupt", "budget": budget}

    def measure(sets: Sequence[Sequence[Head]], on: Prompts) -> Float[Tensor, "set prompt"]:
        keep = torch.stack([keep_only(kept, layers, heads) for kept in sets])
        return measure_subsets(model, on, keep, metric, quiet=True, **masked)

    scores = effects.scores if signed else effects.scores.abs()
    every = effects.ranking(signed=signed)
    curves = 2 * n + (circuit is None)
    with stages("alternatives", {"Searching": 3.0 * curves, "Judging": 1.0}, quiet) as progress:
        with progress.stage("Searching"):
            ends = measure([[], every], ranking_prompts)
            check_gap(model, ranking_prompts, *ends)

            def shares(sets: Sequence[Sequence[Head]]) -> Float[Tensor, " set"]:
                means = torch.cat([ends, measure(sets, ranking_prompts)]).mean(1)
                return explained(means, none=0, whole=1)[2:]

            def shortest(ranking: Sequence[Head], kept: Sequence[Head]) -> tuple[list[Head], float]:
                return _shortest(ranking, kept, shares, threshold)

            first = (
                shortest(every, [])[0]
                if circuit is None
                else list(dict.fromkeys(read_heads(circuit)))
            )
            check_heads(first, layers, heads)
            if not first or len(first) == len(every):
                raise MechheadsError(
                    f"The circuit has {len(first)} of {len(every)} heads. Alternatives to it need "
                    "some heads inside and some outside of it."
                )
            alternatives, core = _disjoint(first, every, shortest, shares, threshold, n)
            alternatives += _penalised(first, every, scores, shortest, threshold, n, penalty)
        with progress.stage("Judging"):
            sets = [[], every, first, *(one.heads for one in alternatives)]
            values = measure(sets, judging)
            check_gap(model, judging, values[0], values[1])
    return Alternatives(
        effects.task,
        model_name(model),
        metrics.choose(metric, judging).name,
        threshold,
        penalty,
        tuple(first),
        tuple(alternatives),
        None if core is None else tuple(core),
        values,
    )


def check_alternatives(n: int, penalty: float = 0.5, least: int = 1) -> None:
    """Raise an error if there are too few alternatives, or the penalty is out of range."""
    if n < least:
        raise MechheadsError(
            f"{'n' if least else '--alternatives'} takes {least} or more circuits, got {n}."
        )
    if not 0 <= penalty <= 1:
        raise MechheadsError(f"penalty takes a factor from 0 to 1, got {penalty}.")


def _shortest(
    ranking: Sequence[Head], kept: Sequence[Head], shares: Any, threshold: float
) -> tuple[list[Head], float]:
    """`kept` and the fewest first heads of a ranking that reach the threshold, and f.

    If none do, the fewest that explain as much as any of them do, to 0.001. At least one is added.
    """

    def measured(counts: Sequence[int]) -> dict[int, float]:
        found = shares([[*kept, *ranking[:k]] for k in counts]).tolist()
        return dict(zip(counts, found, strict=True))

    f = measured([k for k in curve_points(len(ranking)) if k])
    most = 2 * len(f)
    while True:
        best, at = max(f.values()), sorted(f)
        wanted = threshold - TOLERANCE if best >= threshold - TOLERANCE else best - TIE
        curve = torch.tensor([f[k] for k in at])
        more = points_to_add(at, curve, curve[None], wanted) if len(f) < most else []
        if not more:
            break
        f |= measured(more)
    k = next(k for k in at if f[k] >= wanted)
    return [*kept, *ranking[:k]], f[k]


def _disjoint(
    first: list[Head], every: list[Head], shortest: Any, shares: Any, threshold: float, n: int
) -> tuple[list[Alternative], list[Head] | None]:
    """Alternatives that share no head with the circuit, or only those that nothing replaces."""
    found: list[Alternative] = []
    used, kept, core, how = set(first), [], None, "disjoint"
    while sum(one.how == how for one in found) < n:
        others = [head for head in every if head not in used and head not in kept]
        if not others:
            break
        heads, share = shortest(others, kept)
        reached = share >= threshold - TOLERANCE
        number = 1 + sum(one.how == how for one in found)
        found.append(Alternative(number, how, tuple(heads), share, reached))
        used |= set(heads)
        if reached:
            continue
        if core is not None:
            break
        # All heads but one: does anything replace it?
        left = shares([[head for head in every if head != one] for one in first]).tolist()
        core = [head for head, f in zip(first, left, strict=True) if f < threshold - TOLERANCE]
        if not 0 < len(core) < len(first):
            break
        # Heads of a search that failed are free again.
        used = set(first).union(*(one.heads for one in found if one.reached))
        kept, how = core, "core"
    return found, core


def _penalised(
    first: list[Head],
    every: list[Head],
    scores: Float[Tensor, "layer head"],
    shortest: Any,
    threshold: float,
    n: int,
    penalty: float,
) -> list[Alternative]:
    """Alternatives from rankings in which the effects of used heads count less."""
    found: list[Alternative] = []
    scores = scores.clone()
    last: Sequence[Head] = first
    for number in range(1, n + 1):
        for head in last:
            scores[head] *= penalty if scores[head] > 0 else 1.0
        ranking = sorted(every, key=lambda head: -float(scores[head]))  # stable: ties as before
        heads, share = shortest(ranking, [])
        reached = share >= threshold - TOLERANCE
        found.append(Alternative(number, "penalised", tuple(heads), share, reached))
        last = heads
    return found
