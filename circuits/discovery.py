"""What `discover` found: the effects, the curve, the circuit, and how good it is."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from jaxtyping import Float
from torch import Tensor

from mechheads.heads import count_of, listed, name_of
from mechheads.metrics import label_of
from mechheads.observe.activity import HeadActivity
from mechheads.observe.edges import EdgeCounts
from mechheads.observe.evaluation import Evaluation
from mechheads.observe.head_types import HeadTypes
from mechheads.runs.result import Result
from mechheads.scoring.edge_attribution import EdgeEffects
from mechheads.scoring.effects import HeadEffects

from .certainty import Alternatives, Inclusion, PromptClusters
from .circuit import Circuit, Head
from .curve import Curve
from .literature import published_for
from .measured import needed
from .validation import Faithfulness

if TYPE_CHECKING:
    import pandas as pd


# Prompts as (clean, corrupt, answer, wrong answer).
Examples = tuple[tuple[str, str, str, str], ...]
GIVEN = "given"  # the search of a circuit that was not searched for


@dataclass(frozen=True)
class Sample:
    """The attention of some heads on one prompt."""

    prompt: str
    tokens: tuple[str, ...]
    heads: tuple[Head, ...]
    weights: Float[Tensor, "head query key"]


@dataclass(frozen=True)
class Discovery(Result):
    """What `discover` found; `overlap` is the stability of the top heads, at the circuit's size.

    `given_circuit` is the content of the circuit's file if the circuit was given, not chosen.
    `examples` are prompts as (clean, corrupt, answer, wrong answer), the second and the last empty
    if there is none; `shape` has facts about the
    model beyond layers and heads; `judged_on` is the digest of the prompts that judged the ranking.
    `notes` say what could not be measured and why: `types` is None if the model's context is too
    short to repeat tokens in. `inclusion`, `clusters` and `alternatives` say how sure the circuit
    is; None in runs of older versions, or if no alternatives were asked for.
    """

    effects: HeadEffects
    curve: Curve
    faithfulness: Faithfulness
    evaluation: Evaluation
    types: HeadTypes | None
    activity: HeadActivity
    edges: EdgeCounts
    paths: EdgeEffects | None
    sample: Sample
    examples: Examples
    threshold: float
    overlap: float
    shape: Mapping[str, Any]
    search: str = "top"
    signed: bool = False
    judged_on: str = ""
    sparse: bool = False
    given_circuit: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = ()
    inclusion: Inclusion | None = None
    clusters: PromptClusters | None = None
    alternatives: Alternatives | None = None

    def check(self) -> None:
        """Raise a ValueError if the parts of a stored discovery do not belong together."""
        layers, heads = self.effects.values.shape[1:]
        every = [(layer, head) for layer in range(layers) for head in range(heads)]
        types = [] if self.types is None else list(self.types.scores.values())
        grids = [self.edges.used.shape[1:], self.activity.written.shape]
        grids += [scores.shape for scores in types]
        if sorted(self.curve.ranking) != every or any(g != (layers, heads) for g in grids):
            raise ValueError("its parts are of models with different heads")
        if not {*self.faithfulness.heads, *self.sample.heads} <= set(every):
            raise ValueError("it names a head that the model does not have")
        if not 0 < self.threshold <= 1 or not self.sample.tokens or (self.types and not types):
            raise ValueError("its threshold, sample or types are impossible")
        if len(self.sample.weights) != len(self.sample.heads):
            raise ValueError("its sample has other heads than patterns")
        if self.edges.used.shape[0] != self.curve.values.shape[1]:
            raise ValueError("its edges are of other prompts than its curve")
        if self.is_given != (self.search == GIVEN) or self.circuit.heads != self.faithfulness.heads:
            raise ValueError("its circuit is not the one that was tested")

        if self.inclusion is not None and self.inclusion.ranking != self.curve.ranking:
            raise ValueError("its inclusion is of another ranking")
        if self.clusters is not None and len(self.clusters.members) != len(self.effects.values):
            raise ValueError("its groups are of other prompts than its effects")
        if self.alternatives is not None:
            named = {head for one in self.alternatives.found for head in one.heads}
            if self.alternatives.circuit != self.circuit.heads or not named <= set(every):
                raise ValueError("its alternatives are to another circuit")

    @property
    def is_given(self) -> bool:
        """Whether the circuit was given, not chosen."""
        return self.given_circuit is not None

    @property
    def circuit(self) -> Circuit:
        """The heads kept, with their published roles where there are any."""
        task, model = self.curve.task, self.curve.model
        heads = self.faithfulness.heads
        roles = {head: role for head, role in self.roles.items() if head in set(heads)}
        if self.given_circuit is not None:
            given = Circuit.of_content(self.given_circuit)
            return replace(given, roles={**roles, **given.roles})
        return Circuit(f"{task} {self.search} {len(heads)}", heads, task, model, roles)

    @property
    def size(self) -> int:
        """The number of heads in the circuit; if it is soft, what its gates add up to, rounded."""
        return size_of(self.circuit)

    @property
    def roles(self) -> dict[Head, str]:
        """Published roles of the model's heads in this task, where there are any."""
        known = published_for(self.curve.task, self.curve.model, self.edges.used.shape[1:])
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
        """The numbers that sum up the run.

        For a given circuit also what as many heads explain that are the strongest of the ranking,
        or random.
        """
        low, high = self.curve.needed_interval(self.threshold)
        clean = self.evaluation.clean
        judged = self.faithfulness.headline
        others = {
            "explained_by_top": self.curve.explained_at(self.size),
            "explained_by_random": float(self.curve.random_curves[:, self.size].mean()),
        }
        return {
            "heads": len(self.curve.ranking),
            "circuit": [name_of(*head) for head in self.faithfulness.heads],
            "threshold": self.threshold,
            "needed": self.needed,
            "needed_low": low,
            "needed_high": high,
            "needed_stays": self.curve.needed(self.threshold, stays=True),
            "needed_random": self.random_needed,
            **judged,
            **(others if self.is_given else {}),
            "cpr": self.curve.cpr,
            "cmd": self.curve.cmd,
            "area_under": self.curve.area_under,
            "area_from_1": self.curve.area_from_1,
            "cpr_random": self.curve.random_cpr,
            "cmd_random": self.curve.random_cmd,
            "overlap": None if self.effects.single else self.overlap,
            **self._sure,
            "metric": self.curve.metric,
            "metric_clean": float(clean[self.curve.metric].mean()),
            "metric_corrupt": float(self.evaluation.corrupt[self.curve.metric].mean())
            if self.evaluation.paired
            else None,
            **({} if self.ranking_is_given else self._ranked_on),
            "judging_prompts": self.curve.values.shape[1],
            "accuracy": float(clean["accuracy"].mean()),
        }

    @property
    def _sure(self) -> dict[str, Any]:
        """How sure the circuit is, as far as that was measured."""
        parts = (self.inclusion, self.clusters, self.alternatives)
        return {name: n for part in parts if part is not None for name, n in part.headline.items()}

    @property
    def ranking_is_given(self) -> bool:
        """Whether the scores of the heads were given, not measured here."""
        return "given" in self.effects.settings

    @property
    def unused(self) -> tuple[str, ...]:
        """What would have chosen the circuit or ranked the heads, had they not been given."""
        chosen, ranked = ("k", "search"), ("method", "direction")
        return (*(chosen if self.is_given else ()), *(ranked if self.ranking_is_given else ()))

    @property
    def _ranked_on(self) -> dict[str, int]:
        return {f"ranking_{self.effects.over}": len(self.effects.values)}

    @property
    def warnings(self) -> tuple[str, ...]:
        """The model cannot do the task, the effect may be chance, or something was not measured."""
        return *self.evaluation.warnings, *self.curve.warnings, *self.notes

    @property
    def sentence(self) -> str:
        """The result in words."""
        if self.is_given:
            return self._given_sentence
        total, found = len(self.curve.ranking), self.headline
        strongest = name_of(*self.effects.ranking(signed=self.signed)[0])
        chosen = (
            ""
            if len(self.faithfulness.heads) == self.needed and self.search == "top"
            else f" The circuit ({self.search}) has {len(self.faithfulness.heads)} heads and "
            "explains "
            f"{self.faithfulness.faithfulness:z.0%}."
        )
        return (
            f"{self.needed} of {total} heads ({self.needed / total:.0%}) explain "
            f"{self.threshold:.0%} of the {label_of(self.curve.metric)} of "
            f"{self.curve.model} on {self.curve.task} (95% interval over prompts: "
            f"{found['needed_low']:.0f} to {found['needed_high']:.0f}); random rankings need "
            f"{self.random_needed:.0f} on average.{chosen} The strongest is {strongest}; without "
            f"the circuit, {self.faithfulness.left:z.0%} is left.{self._several}"
        )

    @property
    def _several(self) -> str:
        """Whether the prompts seem to need several circuits, if they do."""
        return f" {self.clusters.sentence}" if self.clusters and self.clusters.real else ""

    @property
    def _contributing(self) -> str:
        """Which heads of the circuit are not shown to contribute, in words."""
        if idle := self.faithfulness.idle:
            return f"{listed(idle)} {'is' if len(idle) == 1 else 'are'} not shown to contribute"
        return "each of its heads is shown to contribute"

    @property
    def _given_sentence(self) -> str:
        """What the given circuit explains, next to the ranking and to random heads."""
        found, heads, size = self.headline, self.faithfulness.heads, self.size
        soft = f", gates that add up to {self.circuit.size:.1f}" if self.circuit.gates else ""
        top, random = f"The {size} strongest heads", f"{size} random heads"
        if size == 1:
            top, random = "The strongest head", "a random head"
        strongest = name_of(*self.effects.ranking(signed=self.signed)[0])
        return (
            f"Your circuit ({count_of(heads)}{soft}: {listed(heads)}) explains "
            f"{found['faithfulness']:z.0%} of the {label_of(self.curve.metric)} of "
            f"{self.curve.model} on {self.curve.task} (95% interval over prompts: "
            f"{found['faithfulness_low']:z.0%} to {found['faithfulness_high']:z.0%}). {top} of the "
            f"ranking ({self.effects.method}) explain{'s' * (size == 1)} "
            f"{found['explained_by_top']:z.0%}, {random} {found['explained_by_random']:z.0%} on "
            f"average. Without your circuit, {found['left_without']:z.0%} is left "
            f"({found['left_low']:z.0%} to {found['left_high']:z.0%}); {self._contributing}. "
            f"The ranking needs {self.needed} of {len(self.curve.ranking)} heads to explain "
            f"{self.threshold:.0%} ({found['needed_low']:.0f} to {found['needed_high']:.0f}), "
            f"random rankings need {self.random_needed:.0f} on average; its strongest head is "
            f"{strongest}.{self._several}"
        )

    def frame(self) -> "pd.DataFrame":
        """The curve, one row per added head."""
        return self.curve.frame()


def size_of(circuit: Circuit) -> int:
    """The number of heads that compare to a circuit, which may be soft."""
    return max(1, round(circuit.size))
