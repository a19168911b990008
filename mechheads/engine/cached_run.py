"""Cached runs that changed runs start from, and the interface of an engine.

1. A run of the prompts is cached: what enters every layer, every head's z, keys and values.
2. An `Intervention` defines what z becomes, in several variants at once.
3. A changed run starts at the first changed layer with the z cached there; positions before the
   first changed one stay as cached; the last layer runs only at the positions that are read;
   variants that agree up to a layer share one run up to it.
4. A run can also be advanced from one layer to another, for what reads it on the way.
5. `measure` unembeds the end of the run, only the answer tokens where the metric allows it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

from mechheads.metrics import Metric, answer_tokens, score, score_answers
from mechheads.models.hooks import unembed
from mechheads.models.model import Model
from mechheads.prompts.batches import Batch

from .interventions import Intervention


@dataclass(frozen=True)
class CachedRun:
    """A cached run: what enters every layer, every head's z, and optionally more to reuse.

    Runs that start from it must be the same before position `first`, whatever the intervention, and
    are read at their last `steps` positions.
    """

    first: int
    steps: int
    entering: Sequence[Float[Tensor, "row pos d_model"]]
    z: Sequence[Float[Tensor, "row pos head d_head"]]
    keys: Sequence[Float[Tensor, "row pos kv_head d_head"]] = field(default_factory=list)
    values: Sequence[Float[Tensor, "row pos kv_head d_head"]] = field(default_factory=list)
    beside: Sequence[Float[Tensor, "row pos d_model"]] = field(default_factory=list)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and positions."""
        return self.z[0].shape[0], self.z[0].shape[1]


@runtime_checkable
class Engine(Protocol):
    """Caches runs, and reruns them with interventions."""

    def cache(self, tokens: Int[Tensor, "row pos"], first: int, steps: int) -> CachedRun:
        """Run the tokens once and cache the run."""
        ...

    def rerun(
        self, run: CachedRun, intervention: Intervention
    ) -> Float[Tensor, "variant row steps d_model"]:
        """The end of the run with the intervention."""
        ...

    def rerun_from(
        self, run: CachedRun, entering: Float[Tensor, "row pos d_model"], intervention: Intervention
    ) -> Float[Tensor, "variant row steps d_model"]:
        """The same, with a different residual stream entering the first layer, from `first` on."""
        ...

    def advance(
        self,
        run: CachedRun,
        entering: Float[Tensor, "state row pos d_model"],
        layers: range,
        intervention: Intervention,
    ) -> Float[Tensor, "variant row pos d_model"]:
        """The residual stream after these layers, at all positions, from the one entering them.

        `entering` has a state per variant, or one for all of them.
        """
        ...


def measure(
    model: Model, end: Float[Tensor, "variant row steps d_model"], batch: Batch, metric: Metric
) -> Float[Tensor, "variant batch"]:
    """The metric of every prompt, from the residual stream at the end of its rows, in float32."""
    return measure_in_full(model, end, batch, metric).float()


def measure_in_full(
    model: Model, end: Float[Tensor, "variant row steps d_model"], batch: Batch, metric: Metric
) -> Float[Tensor, "variant batch"]:
    """The same, in the model's dtype."""
    if metric.relative and batch.steps == 1 and batch.contrasted:
        logits = unembed(model, end, answer_tokens(batch))
        return metric(score_answers(logits[:, :, 0], batch))
    return metric(score(unembed(model, end), batch, metric.whole))
