"""The hooked engine: runs a model's own blocks with hooks, from the first changed layer on."""

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from mechheads.models.hooks import attention_inside, run_blocks
from mechheads.models.model import Model, shape_of

from .cached_run import CachedRun
from .interventions import Intervention


@dataclass(frozen=True)
class HookedEngine:
    """Works for every model: runs its own blocks with hooks, from the first changed layer on."""

    model: Model

    def cache(self, tokens: Int[Tensor, "row pos"], first: int, steps: int) -> CachedRun:
        """Run the tokens once and cache the run."""
        entering, z = attention_inside(self.model, tokens)
        return CachedRun(first, steps, entering, z)

    def rerun(
        self, run: CachedRun, intervention: Intervention
    ) -> Float[Tensor, "variant row steps d_model"]:
        """The end of the run with the intervention."""
        start = intervention.start
        return self._end(run, start, run.entering[start], intervention)

    def rerun_from(
        self, run: CachedRun, entering: Float[Tensor, "row pos d_model"], intervention: Intervention
    ) -> Float[Tensor, "variant row steps d_model"]:
        """The same, with a different residual stream entering the first layer."""
        return self._end(run, 0, entering, intervention)

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
        rows, n = run.shape
        copies = entering.expand(intervention.variants, *entering.shape[1:]).flatten(0, 1)

        def change(layer: int, z: Float[Tensor, "row pos head d_head"]) -> Tensor:
            variants = z.unflatten(0, (intervention.variants, rows))
            return intervention(layer, variants, slice(0, n)).flatten(0, 1)

        changed = [i for i in layers if intervention.touches(i)]
        end = run_blocks(self.model, copies, layers.start, changed, change, layers.stop)
        return end.unflatten(0, (intervention.variants, rows))

    def _end(
        self,
        run: CachedRun,
        start: int,
        entering: Float[Tensor, "row pos d_model"],
        intervention: Intervention,
    ) -> Float[Tensor, "variant row steps d_model"]:
        layers = range(start, shape_of(self.model).layers)
        return self.advance(run, entering[None], layers, intervention)[:, :, -run.steps :]
