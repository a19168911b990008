"""Fits gates: the loss on the targets' tokens, plus a pull towards open or closed.

1. loss = mean over prompts of the targets' negative log probability per token
          - lambda * mean over heads of clip(logit, -clip, clip),    gate = sigmoid(logit).
   (The paper prints sums; its authors' code uses means, with lambda 0.1.)
2. Three fits per seed: `free` with lambda 0 from random gates; from there, `plus` with lambda > 0
   opens every gate whose opening does no harm, and `minus` with lambda < 0 closes every gate whose
   closing does no harm.
3. Adam, with linearly decaying learning rates. Each update draws its prompts from all of them.

Two things differ from the paper. It draws 64 prompts per update; on a CPU the default is 8. And it
clips only in the loss: nothing pulls beyond the clip, so a gate that starts there is never tested,
and momentum carries the logits of idle heads on to about 8. Here pulled fits start within +-clip,
and none moves a logit beyond the end of its pull (+clip in `plus`, -clip in `minus`). In the other
direction, and in the free fit, logits go where the loss takes them.

All seeds see the same prompts in the same order and differ only in their initial gates. So many
seeds are fitted in one pass, as variants of the engine, and do not depend on each other.
"""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechheads import metrics
from mechheads.engine.cached_run import CachedRun, Engine, measure_in_full
from mechheads.engine.direct import DirectEngine
from mechheads.engine.gated_runs import GatedRuns
from mechheads.engine.interventions import Replace
from mechheads.engine.select import budget_for, engine_for, frozen
from mechheads.engine.side_by_side import SIDE_BY_SIDE, side_by_side
from mechheads.errors import MechheadsError
from mechheads.models.hooks import embed, gradient
from mechheads.models.model import Model, device_of, dtype_of, encoder_of, model_name, shape_of
from mechheads.progress import bar, say
from mechheads.prompts import Prompts, check_given
from mechheads.prompts.batches import Batch, minibatches

from .gate_roles import Gates, blind, tenth_of, unfinished

# Prompts per update, by device: 64 in the paper, but a CPU would take an hour for ten seeds.
BATCHES = {"cpu": 8}
USUAL_BATCH = 64
LOOKS = 5  # updates whose prompts tell whether the loss has any slope
GateTensor = Float[Tensor, "variant layer head"]
# From an update and the gates: each variant's loss, and the gradient with respect to the gates.
Slope = Callable[[int, GateTensor], tuple[Float[Tensor, " variant"], GateTensor]]


@dataclass(frozen=True)
class FitSettings:
    """How gates are fitted. Learning rates are those of the first and the last update.

    `strength` is the paper's lambda. `batch` defaults to 64 prompts, or 8 on a CPU. `seed`
    determines the order of the prompts and all initial gates; `first` is the first seed to fit.
    """

    seeds: int = 10
    updates: int = 500
    strength: float = 0.1
    rates: tuple[float, float] = (0.1, 0.01)
    pulled_rates: tuple[float, float] = (0.5, 0.1)
    batch: int | None = None
    clip: float = 4.0
    seed: int = 0
    first: int = 0

    def check(self) -> None:
        """Raise an error that names the first invalid setting."""
        for name in ("seeds", "updates", "batch"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise MechheadsError(f"--{name} takes 1 or more, got {value}.")
        for name, value in (("--lambda", self.strength), ("--clip", self.clip)):
            if not 0 < value < math.inf:
                raise MechheadsError(f"{name} takes a finite number above 0, got {value}.")
        for name, rates in (("--rates", self.rates), ("--pulled-rates", self.pulled_rates)):
            if len(rates) != 2 or not all(0 < rate < math.inf for rate in rates):
                raise MechheadsError(
                    f"{name} takes the first and the last learning rate, e.g. 0.5,0.1; "
                    f"got {','.join(map(str, rates))}."
                )

    def settled(self, model: Model, prompts: int) -> "FitSettings":
        """The settings with a batch size that suits the device and the number of prompts."""
        usual = BATCHES.get(device_of(model).type, USUAL_BATCH)
        return replace(self, batch=min(self.batch or usual, prompts))


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


def make_minibatches(
    model: Model, prompts: Prompts, settings: FitSettings, budget: int | None = None
) -> Minibatches:
    """The clean prompts with their answers; wrong answers are not needed."""
    assert settings.batch is not None
    targets = replace(prompts, pairs=tuple(replace(pair, wrong=()) for pair in prompts.pairs))
    every = minibatches(encoder_of(model), targets, len(prompts), settings.seed)
    engine, budget = engine_for(model), budget_for(model, budget)
    direct = isinstance(engine, DirectEngine)
    gated = GatedRuns(model, engine, every, budget) if direct else None
    return Minibatches(model, engine, every, settings.batch, settings.seed, budget, gated)


def first_logits(settings: FitSettings, shape: tuple[int, int]) -> Float[Tensor, "seed layer head"]:
    """Gates drawn uniformly from 0 to 1, as logits; each seed's are independent of the others."""
    drawn = [
        torch.rand(shape, generator=torch.Generator().manual_seed(settings.seed * 100_003 + i))
        for i in range(settings.first, settings.first + settings.seeds)
    ]
    return torch.logit(torch.stack(drawn), eps=1e-6)


def fit_gates(
    model: Model,
    prompts: Prompts,
    settings: FitSettings | None = None,
    *,
    budget: int | None = None,
    quiet: bool = False,
) -> Gates:
    """Fit a gate to every head: free, pulled open (G+) and pulled closed (G-), for every seed.

    Args:
        model: what `mechheads.load` returns; its weights do not change
        prompts: what `tasks.make` returns; only clean prompts and their answers are used
        settings: seeds, updates, learning rates and so on; default: `FitSettings()`
        budget: tokens per pass, which bounds memory; default: chosen for the device
        quiet: show no progress bar

    Returns:
        Gates: the gates of every seed, and the scores and roles of the heads. `frame()` has a row
        per seed and head. Costs two forward and backward passes per update, all seeds together.

    >>> import mechheads, tasks
    >>> from mechheads.scoring.gate_fitting import FitSettings
    >>> model = mechheads.load("mini")
    >>> few = FitSettings(seeds=2, updates=20)
    >>> gates = mechheads.fit_gates(model, tasks.make("syntax", model, n=16), few, quiet=True)
    >>> gates.plus.shape
    torch.Size([2, 4, 8])
    """
    check_given(prompts)
    settings = settings or FitSettings()
    settings.check()
    settings = settings.settled(model, len(prompts))
    minibatches = make_minibatches(model, prompts, settings, budget)
    start = first_logits(settings, shape_of(model).grid)
    start = start.to(torch.float64 if dtype_of(model) == torch.float64 else torch.float32)
    n, ungated = settings.seeds, minibatches.nll(torch.ones_like(start[:1])).item()
    pull = torch.tensor([settings.strength] * n + [-settings.strength] * n)
    check_seen(model, minibatches.slope, start)
    # One unit is an update of one variant: the pulled fits have twice as many as the free ones.
    with bar(3 * n * settings.updates, "Fitting gates", quiet) as progress:
        free = descend(minibatches.slope, start, torch.zeros(n), settings.rates, settings, progress)
        nll = minibatches.nll(free.logits.sigmoid())
        if words := unfinished("free", free.losses, free.moved, nll, ungated, free.steepest):
            say(f"Warning: {words}", quiet)
        both = torch.cat([free.logits, free.logits])
        pulled = descend(minibatches.slope, both, pull, settings.pulled_rates, settings, progress)
    gates = torch.cat([free.logits, pulled.logits]).sigmoid()

    def joined(name: str) -> Tensor:
        both = torch.cat([getattr(free, name), getattr(pulled, name)])
        return both.unflatten(0, (3, n))

    found = Gates(
        prompts.task,
        model_name(model),
        gates[:n],
        gates[n : 2 * n],
        gates[2 * n :],
        joined("losses"),
        joined("means"),
        joined("moved"),
        torch.cat([nll, minibatches.nll(gates[n:])]).unflatten(0, (3, n)),
        ungated,
        asdict(settings),
        free.steepest,
    )
    for late in found.warnings:
        if late != words:
            say(f"Warning: {late}", quiet)
    return found


@dataclass(frozen=True)
class Fit:
    """Fitted logits, and the losses (without the pull) and mean gates of every update.

    `moved` is how far a gate still moved, mean over heads, from the third-last tenth of the updates
    to the last. `steepest` is the largest slope of the loss that any gate's logit ever had.
    """

    logits: Float[Tensor, "variant layer head"]
    losses: Float[Tensor, "variant update"]
    means: Float[Tensor, "variant update"]
    moved: Float[Tensor, " variant"]
    steepest: Float[Tensor, " variant"]


def check_seen(model: Model, slope: Slope, logits: GateTensor) -> None:
    """Raise if the loss has no slope for any gate: no fit could tell the heads apart.

    Looks at the prompts of the first updates; usually one of them is enough.
    """
    gates = logits.sigmoid()
    for update in range(LOOKS):
        if not blind(steepest_of(slope(update, gates)[1] * gates * (1 - gates))).all():
            return
    raise MechheadsError(
        f"gating cannot see {model_name(model)}: the loss passes no gradient to any gate, as where "
        "a step function follows the heads. Use the method patch."
    )


def steepest_of(slopes: GateTensor) -> Float[Tensor, " variant"]:
    """The largest slope of each variant."""
    return slopes.abs().amax((1, 2)).float()


def descend(
    slope: Slope,
    logits: Float[Tensor, "variant layer head"],
    pull: Float[Tensor, " variant"],
    rates: tuple[float, float],
    settings: FitSettings,
    progress: Any,
) -> Fit:
    """Run Adam on the logits of all variants."""
    bounded = logits.clamp(-settings.clip, settings.clip)
    logits = torch.where(pull[:, None, None] == 0, logits, bounded)
    adam = torch.optim.Adam([logits], lr=rates[0])
    losses, means = torch.zeros(2, len(logits), settings.updates)
    ends, steepest = torch.zeros(2, *logits.shape), torch.zeros(len(logits))
    tenth = tenth_of(settings.updates)
    for update in range(settings.updates):
        share = update / max(1, settings.updates - 1)
        adam.param_groups[0]["lr"] = rates[0] + share * (rates[1] - rates[0])
        gates = logits.sigmoid()
        losses[:, update], of_gates = slope(update, gates)
        _check_finite(losses[:, update], update)
        of_loss = of_gates * gates * (1 - gates)
        steepest = torch.maximum(steepest, steepest_of(of_loss))
        logits.grad = of_loss + pull_slope(logits, pull, settings.clip)
        adam.step()
        logits[pull > 0] = logits[pull > 0].clamp(max=settings.clip)
        logits[pull < 0] = logits[pull < 0].clamp(min=-settings.clip)
        gates = logits.sigmoid()
        means[:, update] = gates.mean((1, 2))
        left = settings.updates - update
        if left <= tenth:
            ends[1] += gates / tenth
        elif 2 * tenth < left <= 3 * tenth:
            ends[0] += gates / tenth
        progress.set_postfix(shown(losses[:, update], means[:, update], pull), refresh=False)
        progress.update(len(logits))
    return Fit(logits, losses, means, (ends[1] - ends[0]).abs().mean((1, 2)), steepest)


def pull_slope(
    logits: Float[Tensor, "variant layer head"], pull: Float[Tensor, " variant"], clip: float
) -> Float[Tensor, "variant layer head"]:
    """The gradient of - lambda * mean over heads of clip(logit)."""
    inside = (logits.abs() <= clip).to(logits)
    return -pull.to(logits)[:, None, None] * inside / logits[0].numel()


def shown(
    losses: Float[Tensor, " variant"],
    means: Float[Tensor, " variant"],
    pull: Float[Tensor, " variant"],
) -> dict[str, str]:
    """Loss and mean gate of each kind of fit, for the progress bar."""
    words = {}
    for sign, end in ((0, ""), (1, "+"), (-1, "-")):
        chosen = pull.sign() == sign
        if chosen.any():
            words[f"loss{end}"] = f"{losses[chosen].mean():.3f}"
            words[f"g{end}"] = f"{means[chosen].mean():.2f}"
    return words


def _check_finite(losses: Float[Tensor, " variant"], update: int) -> None:
    wrong = int((~losses.isfinite()).sum())
    if wrong:
        raise MechheadsError(
            f"at update {update + 1} the loss of {wrong} of {len(losses)} fits is not finite. "
            "Lower --rates and --pulled-rates, or use --dtype float32."
        )
