"""Contrastive gating: the heads that one kind of prompt needs and another can do without.

loss = - log p(retain) + max(log p(forget) - log p(retain), -5) - lambda * mean of clipped logits,

where log p is the mean log probability per target token of an update's prompts, with no gradient
through the log p(retain) that is subtracted. The floor of -5 ends the reward for forgetting once
the forgotten answer is e^5 times less likely than the retained one. lambda > 0 keeps open the heads
that neither side needs.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.engine.head_subsets import measure_subsets
from mechheads.errors import MechheadsError
from mechheads.models.model import Model, model_name, shape_of
from mechheads.progress import bar, say, stages
from mechheads.prompts import LEAST, Pair, Prompts
from mechheads.runs.frames import tidy
from mechheads.runs.result import Result
from mechheads.scoring.gate_fitting import (
    FitSettings,
    GateTensor,
    check_seen,
    descend,
    first_logits,
    make_minibatches,
)
from mechheads.scoring.gate_roles import unfinished

if TYPE_CHECKING:
    import pandas as pd

FLOOR = -5.0


@dataclass(frozen=True)
class Side:
    """One kind of prompt: those that gates are fitted to, and those that test them."""

    name: str
    fitted: Prompts
    tested: Prompts


def keep_apart(retain: Side, forget: Side) -> tuple[Side, Side]:
    """Both sides without fitting prompts about anything that either side tests."""
    tested = {_about(pair) for side in (retain, forget) for pair in side.tested.pairs}

    def untested(side: Side) -> Side:
        pairs = tuple(pair for pair in side.fitted.pairs if _about(pair) not in tested)
        if len(pairs) < LEAST:
            raise MechheadsError(
                f"{side.name}: without those about tested subjects, only {len(pairs)} prompts are "
                "left to fit. Raise --n or lower --test."
            )
        return replace(side, fitted=replace(side.fitted, pairs=pairs))

    return untested(retain), untested(forget)


def _about(pair: Pair) -> str:
    """What a prompt asks, without the solved examples before it, which differ by format."""
    return pair.subject or pair.group or pair.clean


@dataclass(frozen=True)
class Trial:
    """The gates of every seed, and the held-out accuracy (against all tokens) of both sides.

    `left_out` names the task that the gates have never seen, if any. `losses` and `moved` are as in
    a `Fit`; `fitted` counts the prompts of each side that gates were fitted to.
    """

    retain: str
    forget: str
    left_out: str
    gates: Float[Tensor, "seed layer head"]
    before: Float[Tensor, " 2"]
    after: Float[Tensor, "2 seed"]
    losses: Float[Tensor, "seed update"]
    moved: Float[Tensor, " seed"]
    fitted: tuple[int, int] = (0, 0)

    @property
    def warning(self) -> str | None:
        """A warning if the fit has not converged."""
        return unfinished("contrastive", self.losses, self.moved)


@dataclass(frozen=True)
class Contrast(Result):
    """Trials on one model; several if each task of a family was left out in turn."""

    model: str
    trials: tuple[Trial, ...]
    settings: dict[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        """Raise a ValueError if there is nothing in it."""
        if not self.trials:
            raise ValueError("it has no trials")

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings of all trials, without duplicates."""
        found = [
            f"{t.left_out} left out: {t.warning}" if t.left_out else t.warning
            for t in self.trials
            if t.warning
        ]
        return tuple(dict.fromkeys(found))

    @property
    def headline(self) -> dict[str, Any]:
        """The numbers of result.json: accuracies, mean over seeds."""
        numbers: dict[str, Any] = {
            f"{trial.left_out or 'all'}, {side}, {what}": float(value)
            for trial in self.trials
            for i, side in enumerate(("retain", "forget"))
            for what, value in (
                ("before", trial.before[i]),
                ("after", trial.after[i].mean()),
                ("prompts fitted", trial.fitted[i]),
            )
        }
        return numbers | {"batch": self.settings["batch"]}

    @property
    def sentence(self) -> str:
        """Accuracies before and after, in words."""
        lines = []
        for trial in self.trials:
            ends = [
                f"{name} {trial.before[i].item():.0%} -> {trial.after[i].mean().item():.0%}"
                for i, name in enumerate((trial.retain, trial.forget))
            ]
            start = f"{trial.left_out} left out: r" if trial.left_out else "R"
            lines.append(f"{start}etain {ends[0]}, forget {ends[1]}.")
        return " ".join(lines)

    def frame(self) -> "pd.DataFrame":
        """A tidy frame: left_out, side, prompts, seed, before, after."""
        import pandas as pd

        rows = [
            (t.left_out, side, name, seed, t.before[i].item(), value)
            for t in self.trials
            for i, (side, name) in enumerate((("retain", t.retain), ("forget", t.forget)))
            for seed, value in enumerate(t.after[i].tolist())
        ]
        columns = ["left_out", "side", "prompts", "seed", "before", "after"]
        return pd.DataFrame(rows, columns=pd.Index(columns))

    def summary(self) -> "pd.DataFrame":
        """For the figure: task, side, state, accuracy, and the range over seeds."""
        import pandas as pd

        rows = []
        for t in self.trials:
            for i, side in enumerate(("retain", "forget")):
                name = t.left_out or (t.retain, t.forget)[i]
                before = t.before[i].item()
                ends = (t.after[i].mean().item(), t.after[i].min().item(), t.after[i].max().item())
                rows.append((name, side, "before", before, before, before))
                rows.append((name, side, "after", *ends))
        columns = ["task", "side", "state", "accuracy", "low", "high"]
        return pd.DataFrame(rows, columns=pd.Index(columns))

    def gate_frame(self) -> "pd.DataFrame":
        """A tidy frame: left_out, seed, layer, head, gate."""
        import pandas as pd

        parts = []
        for t in self.trials:
            part = tidy(("seed", "layer", "head"), {"gate": t.gates})
            part.insert(0, "left_out", t.left_out)
            parts.append(part)
        return pd.concat(parts, ignore_index=True)


def contrast_loss(
    kept: Float[Tensor, " variant"], lost: Float[Tensor, " variant"]
) -> Float[Tensor, " variant"]:
    """The loss from the negative log probabilities of the retained and the forgotten side."""
    return kept + (kept.detach() - lost).clamp(min=FLOOR)


def contrast(
    model: Model,
    retain: Side,
    forget: Side,
    settings: FitSettings | None = None,
    *,
    left_out: str = "",
    budget: int | None = None,
    quiet: bool = False,
) -> Trial:
    """Fit gates that keep one side's answers and lose the other's; test on held-out prompts."""
    settings = settings or FitSettings()
    settings.check()
    settings = settings.settled(model, min(len(side.fitted) for side in (retain, forget)))
    courses = [make_minibatches(model, side.fitted, settings, budget) for side in (retain, forget)]

    def slope(update: int, gates: GateTensor) -> tuple[Float[Tensor, " variant"], GateTensor]:
        (kept, up), (lost, down) = (course.slope(update, gates) for course in courses)
        with torch.enable_grad():
            loss = contrast_loss(kept.requires_grad_(), lost.requires_grad_())
            by_kept, by_lost = torch.autograd.grad(loss.sum(), (kept, lost))
        return loss.detach(), by_kept[:, None, None] * up + by_lost[:, None, None] * down

    logits = first_logits(settings, shape_of(model).grid)
    check_seen(model, slope, logits)
    pull = torch.full((settings.seeds,), settings.strength)
    n, batch = settings.seeds, settings.batch or 1
    tests = {f"Testing {what}": side for what, side in (("retain", retain), ("forget", forget))}
    weights = {"Fitting gates": 3.0 * batch * n * settings.updates}
    weights |= {what: (1 + n) * len(side.tested) / 2 for what, side in tests.items()}
    said = []
    with stages("contrast", weights, quiet) as progress:
        with progress.stage("Fitting gates"), bar(n * settings.updates, "Updates") as updates:
            fitted = descend(slope, logits, pull, settings.pulled_rates, settings, updates)
        gates = fitted.logits.sigmoid()
        keep = torch.cat([torch.ones(1, *gates.shape[1:]), gates])
        for what, side in tests.items():
            with progress.stage(what):
                values = measure_subsets(
                    model, side.tested, keep, "top1", replacement="zero", budget=budget
                )
            said.append(values.mean(1))
    accuracy = torch.stack(said)
    trial = Trial(
        retain.name,
        forget.name,
        left_out,
        gates,
        accuracy[:, 0],
        accuracy[:, 1:],
        fitted.losses,
        fitted.moved,
        (len(retain.fitted), len(forget.fitted)),
    )
    if trial.warning:
        say(f"Warning: {trial.warning}", quiet)
    return trial


def run_contrasts(
    model: Model,
    sides: Sequence[tuple[str, Side, Side]],
    settings: FitSettings,
    *,
    budget: int | None = None,
    quiet: bool = False,
) -> Contrast:
    """One trial per (left-out task, retain, forget), all with the same batch size."""
    fewest = min(len(side.fitted) for _, *both in sides for side in both)
    settings = settings.settled(model, fewest)
    trials, common = [], {"budget": budget, "quiet": quiet}
    with bar(len(sides), "Trials", quiet) as progress:
        for name, retain, forget in sides:
            with progress.part(name=f"{name} left out" if name else ""):
                trials.append(contrast(model, retain, forget, settings, left_out=name, **common))
    return Contrast(model_name(model), tuple(trials), asdict(settings))
