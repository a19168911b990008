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
seeds are fitted in one pass (`engine.gate_losses`), and do not depend on each other.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.engine.direct import DirectEngine
from mechheads.engine.gate_losses import GateTensor, Minibatches
from mechheads.engine.gated_runs import GatedRuns
from mechheads.engine.select import budget_for, engine_for
from mechheads.errors import MechheadsError
from mechheads.models.model import Model, device_of, dtype_of, encoder_of, model_name, shape_of
from mechheads.progress import bar, say
from mechheads.prompts import Prompts, check_given
from mechheads.prompts.batches import minibatches

from .gate_roles import Gates, blind, tenth_of, unfinished

# Prompts per update, by device: 64 in the paper, but a CPU would take an hour for ten seeds.
BATCHES = {"cpu": 8}
USUAL_BATCH = 64
LOOKS = 5  # updates whose prompts tell whether the loss has any slope
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
