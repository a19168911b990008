"""The loss of some prompts with gates on all heads, many variants at once, and its slope.

1. The prompts of an update are drawn from all of them, by a seed.
2. They run in passes that a budget bounds: some of the prompts, with some of the variants.
3. Where the direct engine supports the model, a pass has prompts of any length (`gated_runs`), and
   two passes run side by side; elsewhere the model's own blocks run a pass per length.
"""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechheads import metrics
from mechheads.models.hooks import embed, gradient
from mechheads.models.model import Model, device_of, encoder_of, shape_of
from mechheads.prompts.batches import Batch

from .cached_run import CachedRun, Engine, measure_in_full
from .gated_runs import GatedRuns
from .interventions import Replace
from .select import frozen
from .side_by_side import SIDE_BY_SIDE, side_by_side

GateTensor = Float[Tensor, "variant layer head"]
# The loss of some prompts with gates, which prompts they are, and the variants to run together.
Pass = tuple[Callable[[GateTensor], Float[Tensor, "variant prompt"]], slice]


@dataclass(frozen=True)
class Minibatches:
    """All prompts, in one batch per length; each update draws `size` of them.

    A pass holds at most `budget` tokens, unless a single prompt in a single variant has more.
    Where the direct engine supports the model, `gated` runs prompts of all lengths together, in two
    passes side by side with half of the budget each.
    """

    model: Model
    engine: Engine
    every: Sequence[Batch]
    size: int
    seed: int
    budget: int
    gated: GatedRuns | None = None

    def __len__(self) -> int:
        """The number of prompts."""
        return sum(len(batch.pairs) for batch in self.every)

    def drawn(self, update: int) -> Int[Tensor, " drawn"]:
        """The prompts of an update."""
        rng = random.Random(f"{self.seed}/{update}")
        return torch.tensor(rng.sample(range(len(self)), self.size))

    def slope(self, update: int, gates: GateTensor) -> tuple[Float[Tensor, " variant"], GateTensor]:
        """Each variant's mean loss on an update's prompts, and the gradient of its gates."""

        def run(one: Pass) -> tuple[Tensor, Tensor]:
            measure, some = one
            part = gates[some].detach().requires_grad_()
            loss = measure(part).sum(-1)
            return loss.detach(), gradient(self.model, loss.sum(), part)

        losses, slope = gates.new_zeros(len(gates)), torch.zeros_like(gates)
        passes = list(self.passes(self.drawn(update), len(gates)))
        with frozen(self.model), torch.enable_grad():
            found = self.together(run, passes)
        for (_, some), (loss, part) in zip(passes, found, strict=True):
            losses[some] += loss.to(losses)
            slope[some] += part
        return losses / self.size, slope / self.size

    @torch.no_grad()
    def nll(self, gates: GateTensor) -> Float[Tensor, " variant"]:
        """Each variant's mean loss on all prompts."""
        losses = gates.new_zeros(len(gates))
        passes = list(self.passes(torch.arange(len(self)), len(gates)))
        found = self.together(lambda one: one[0](gates[one[1]]).sum(-1), passes)
        for (_, some), loss in zip(passes, found, strict=True):
            losses[some] += loss.to(losses)
        return losses / len(self)

    def together(self, run: Callable[[Pass], Any], passes: Sequence[Pass]) -> list[Any]:
        """The results of all passes, in order."""
        if self.gated is None:
            return [run(one) for one in passes]
        return side_by_side(run, passes, device_of(self.model))

    def passes(self, chosen: Int[Tensor, " chosen"], variants: int) -> Iterator[Pass]:
        """The chosen prompts in parts, each with as many variants as fit into a pass."""
        if self.gated is None:
            for batch in self.cut(chosen):
                held = len(batch.clean) * row_tokens(self.model, batch)
                for some in shared_out(variants, max(1, self.budget // held)):
                    yield partial(self.nll_of, batch), some
            return
        half = max(1, self.budget // SIDE_BY_SIDE)
        for group in self.gated.groups(chosen, half):
            drawn = self.gated.draw(group)
            for some in shared_out(variants, max(1, half // self.gated.cost(drawn))):
                yield partial(self.gated.nll, drawn), some

    def nll_of(self, batch: Batch, gates: GateTensor) -> Float[Tensor, "variant prompt"]:
        """Negative log probability per token of every prompt's target, by the engine."""
        with torch.no_grad():
            entering = embed(self.model, batch.clean)
        # Gates change every layer's z, so none is cached: only rows and positions matter.
        run = CachedRun(0, batch.steps, [entering], [entering[:, :, None]])
        end = self.engine.rerun_from(run, entering, Replace(gates))
        said = measure_in_full(self.model, end, batch, metrics.find("logprob"))
        lengths = (batch.choices >= 0).sum(-1) * batch.right
        return -said * batch.right.sum(-1) / lengths.sum(-1)

    def cut(self, chosen: Int[Tensor, " chosen"]) -> list[Batch]:
        """The chosen prompts, in batches of one length each that fit into a pass."""
        found = []
        for batch in self.every:
            inside = torch.isin(batch.pairs, chosen).nonzero()[:, 0]
            largest = int(batch.pair_of.bincount().max()) * row_tokens(self.model, batch)
            parts = inside.split(max(1, self.budget // largest))
            found += [take(batch, part) for part in parts if len(part)]
        return found


def shared_out(variants: int, most: int) -> list[slice]:
    """The variants in slices of at most `most`, as even as possible."""
    ends = [variants * i // -(-variants // most) for i in range(-(-variants // most) + 1)]
    return [slice(begin, end) for begin, end in pairwise(ends)]


def row_tokens(model: Model, batch: Batch) -> int:
    """Memory of a row in a pass with gradients, in tokens of a pass without.

    With frozen weights, a pass without gradients holds about as much as six layers keep for the
    backward pass, which needs all layers. Logits come on top, 4096 per token.
    """
    layers = max(1.0, shape_of(model).layers / 6)
    return math.ceil(layers * batch.length + batch.steps * encoder_of(model).vocabulary / 4096)


def take(batch: Batch, chosen: Int[Tensor, " chosen"]) -> Batch:
    """Only the chosen pairs of a batch, by their ascending indices in it."""
    rows = torch.isin(batch.pair_of, chosen)
    return Batch(
        pairs=batch.pairs[chosen],
        clean=batch.clean[rows],
        corrupt=batch.corrupt[rows],
        pair_of=torch.searchsorted(chosen, batch.pair_of[rows]),
        choices=batch.choices[chosen],
        row_of=(rows.cumsum(0) - 1)[batch.row_of[chosen]],
        right=batch.right[chosen],
    )
