"""Fits gates: the loss on the targets' tokens, and a pull towards open or closed.

1. loss = mean over prompts of the targets' negative log probability per token
          - lambda * mean over heads of clip(logit, -clip, clip),    gate = sigmoid(logit).
   (The paper prints sums; its authors' code uses means, with lambda 0.1.)
2. Three fits for every seed: `free` with lambda 0 from gates drawn at random; from there `plus`
   with lambda > 0, which opens every gate that does no harm open, and `minus` with lambda < 0,
   which closes every gate that does no harm closed.
3. Adam, with rates that fall in a straight line. Logits are kept within +-clip, where the pull
   ends; so momentum carries none of them further.

All seeds see the same prompts in the same order and differ in their first gates alone, so that many
are fitted in one pass, along the engine's variants, and a seed's gates do not depend on the others.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from .. import metrics
from ..batches import Batch, minibatches
from ..engine import Engine, Replace, Run, budget_for, engine_for, measure, unchanged
from ..errors import MechheadsError
from ..models import Model
from ..progress import bar, say
from ..prompts import Prompts
from .roles import Gating, unfinished

# Prompts per update, by device: 64 in the paper; a CPU would take an hour for ten seeds.
BATCHES = {"cpu": 8}
USUAL_BATCH = 64
Gates = Float[Tensor, "variant layer head"]
# The loss of every variant at an update, given its gates.
Objective = Callable[[int, Gates], Float[Tensor, " variant"]]


@dataclass(frozen=True)
class Recipe:
    """How gates are fitted. Rates are those of the first and the last update.

    `strength` is the paper's lambda. Without a `batch` it is 64 prompts, on a CPU 8. `seed` is that
    of the prompts' order and of all seeds together, of which those from `first` on are fitted.
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
        """An error names what cannot be."""
        for name in ("seeds", "updates", "batch"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise MechheadsError(f"--{name} takes 1 or more, got {value}.")
        if not self.strength > 0:
            raise MechheadsError(f"--lambda takes more than 0, got {self.strength}.")
        if not self.clip > 0:
            raise MechheadsError(f"--clip takes more than 0, got {self.clip}.")
        for name, rates in (("--rates", self.rates), ("--pulled-rates", self.pulled_rates)):
            if len(rates) != 2 or not min(rates) > 0:
                raise MechheadsError(
                    f"{name} takes the first and the last learning rate, such as 0.5,0.1; "
                    f"got {','.join(map(str, rates))}."
                )

    def settled(self, model: Model) -> "Recipe":
        """With the batch that suits the model's device."""
        usual = BATCHES.get(model.W_E.device.type, USUAL_BATCH)
        return self if self.batch else replace(self, batch=usual)


@dataclass(frozen=True)
class Lesson:
    """Some prompts of one length, and what of their run the gates do not change."""

    batch: Batch
    run: Run
    tokens: Float[Tensor, " prompt"]

    @property
    def prompts(self) -> int:
        """How many."""
        return len(self.batch.pairs)


@dataclass(frozen=True)
class Course:
    """Lessons in a random order, longer ones more often, so that prompts come equally often."""

    model: Model
    engine: Engine
    lessons: Sequence[Lesson]
    seed: int

    def nll(self, update: int, gates: Gates) -> Float[Tensor, " variant"]:
        """Mean over the prompts of an update: negative log probability per token of the target."""
        sizes = [lesson.prompts for lesson in self.lessons]
        (lesson,) = random.Random(f"{self.seed}/{update}").choices(self.lessons, sizes)
        return self.nll_of(lesson, gates).mean(-1)

    def nll_of(self, lesson: Lesson, gates: Gates) -> Float[Tensor, "variant prompt"]:
        """For every prompt of a lesson."""
        end = self.engine.begin(lesson.run, lesson.run.entering[0], Replace(gates))
        said = measure(self.model, end, lesson.batch, metrics.find("logprob"))
        return -said / lesson.tokens

    @torch.no_grad()
    def ungated(self) -> float:
        """The same for the model as it is, over all prompts."""
        keep = unchanged(self.model).keep
        parts = [self.nll_of(lesson, keep).flatten() for lesson in self.lessons]
        return torch.cat(parts).mean().item()


@torch.no_grad()
def make_course(model: Model, prompts: Prompts, size: int, seed: int) -> Course:
    """The clean prompts with their answers; wrong answers are not needed."""
    targets = replace(prompts, pairs=tuple(replace(pair, wrong=()) for pair in prompts.pairs))
    engine = engine_for(model)
    lessons = []
    for batch in minibatches(model, targets, size, seed):
        run = engine.remember(batch.clean, 0, batch.steps)
        # Gates change all that comes after the first layer's heads.
        kept = Run(0, batch.steps, run.entering[:1], run.z[:1])
        lengths = (batch.choices >= 0).sum(-1).double()
        tokens = (lengths * batch.right).sum(-1) / batch.right.sum(-1)
        lessons.append(Lesson(batch, kept, tokens.to(run.z[0].dtype)))
    return Course(model, engine, lessons, seed)


def first_logits(recipe: Recipe, shape: tuple[int, int]) -> Float[Tensor, "seed layer head"]:
    """Gates drawn evenly from 0 to 1, as logits; a seed's do not depend on how many there are."""
    drawn = [
        torch.rand(shape, generator=torch.Generator().manual_seed(recipe.seed * 100_003 + i))
        for i in range(recipe.first, recipe.first + recipe.seeds)
    ]
    return torch.logit(torch.stack(drawn), eps=1e-6).clamp(-recipe.clip, recipe.clip)


def fit_gates(
    model: Model,
    prompts: Prompts,
    recipe: Recipe | None = None,
    *,
    budget: int | None = None,
    quiet: bool = False,
) -> Gating:
    """The three fits of every seed on the clean prompts and their answers."""
    recipe = (recipe or Recipe()).settled(model)
    recipe.check()
    assert recipe.batch is not None
    course = make_course(model, prompts, recipe.batch, recipe.seed)
    size = variants_at_once(model, course, budget)
    logits = first_logits(recipe, (model.cfg.n_layers, model.cfg.n_heads))
    logits = logits.to(model.W_E.dtype if model.W_E.dtype == torch.float64 else torch.float32)
    n, ungated = recipe.seeds, course.ungated()
    pull = torch.cat([torch.full((n,), recipe.strength), torch.full((n,), -recipe.strength)])
    with bar(2 * recipe.updates, "Updates", quiet) as progress:
        free, free_trace = descend(
            course.nll, logits, torch.zeros(n), recipe.rates, recipe, size, progress
        )
        _warn("free", free_trace, ungated, quiet)
        both, trace = descend(
            course.nll, torch.cat([free, free]), pull, recipe.pulled_rates, recipe, size, progress
        )
    found = Gating(
        prompts.task,
        model.cfg.model_name,
        free.sigmoid(),
        both[:n].sigmoid(),
        both[n:].sigmoid(),
        torch.stack([free_trace[0], trace[0, :n], trace[0, n:]]),
        torch.stack([free_trace[1], trace[1, :n], trace[1, n:]]),
        ungated,
        asdict(recipe),
    )
    _warn("plus", trace[:, :n], ungated, quiet)
    _warn("minus", trace[:, n:], ungated, quiet)
    return found


def descend(
    objective: Objective,
    logits: Float[Tensor, "variant layer head"],
    pull: Float[Tensor, " variant"],
    rates: tuple[float, float],
    recipe: Recipe,
    size: int,
    progress: Any,
) -> tuple[Float[Tensor, "variant layer head"], Float[Tensor, "2 variant update"]]:
    """Adam on the logits, `size` variants at a time; also each update's losses and mean gates.

    The losses are those of the targets, without the pull.
    """
    logits = logits.clone()
    adam = torch.optim.Adam([logits], lr=rates[0])
    trace = torch.zeros(2, len(logits), recipe.updates)
    for update in range(recipe.updates):
        share = update / max(1, recipe.updates - 1)
        adam.param_groups[0]["lr"] = rates[0] + share * (rates[1] - rates[0])
        logits.grad = torch.zeros_like(logits)
        for begin in range(0, len(logits), size):
            some = slice(begin, begin + size)
            logits.grad[some], trace[0, some, update] = slope(
                objective, update, logits[some], pull[some], recipe.clip
            )
        adam.step()
        logits.clamp_(-recipe.clip, recipe.clip)
        trace[1, :, update] = logits.sigmoid().mean((1, 2))
        now = trace[:, :, update].mean(1)
        progress.set_postfix(loss=f"{now[0]:.3f}", gates=f"{now[1]:.2f}", refresh=False)
        progress.update()
    return logits, trace


@torch.enable_grad()
def slope(
    objective: Objective,
    update: int,
    logits: Float[Tensor, "variant layer head"],
    pull: Float[Tensor, " variant"],
    clip: float,
) -> tuple[Float[Tensor, "variant layer head"], Float[Tensor, " variant"]]:
    """The gradient of loss and pull, and the loss."""
    part = logits.detach().requires_grad_()
    loss = objective(update, part.sigmoid())
    pulled = pull.to(part) * part.clamp(-clip, clip).mean((1, 2))
    (gradient,) = torch.autograd.grad((loss - pulled.to(loss)).sum(), part)
    return gradient, loss.detach()


def variants_at_once(model: Model, course: Course, budget: int | None) -> int:
    """How many fit into a pass; a pass that has a gradient remembers several times as much."""
    longest = max(lesson.batch.clean.numel() for lesson in course.lessons)
    return max(1, (budget or budget_for(model)) // longest)


def _warn(fit: str, trace: Float[Tensor, "2 seed update"], ungated: float, quiet: bool) -> None:
    """Say at once that a fit has not come to its end."""
    if words := unfinished(fit, trace[0], trace[1], ungated):
        say(f"Warning: {words}", quiet)
