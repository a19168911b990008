"""The full gating experiment: fit gates to some prompts and test them on others.

1. On the fitting prompts: three fits per seed (`scoring.gate_fitting`).
2. On the test prompts: activation patching for comparison, the gain of every head, an ablation
   curve per role, and what each mask keeps.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.engine.head_subsets import measure_subsets
from mechheads.models.model import Model, shape_of
from mechheads.observe.evaluation import evaluate
from mechheads.progress import stages
from mechheads.prompts import Prompts
from mechheads.runs.result import Result
from mechheads.scoring.activation_patching import patch
from mechheads.scoring.gate_fitting import FitSettings, fit_gates
from mechheads.scoring.gate_roles import LIMIT, Gates, HeadRoles
from mechheads.scoring.head_gating import judge_roles

from .ablation_curves import Ablation, ablate, grid
from .agreement import Agreement, agreement

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class MaskTable:
    """What each mask keeps of the model, on held-out prompts; mean over prompts and seeds."""

    names: tuple[str, ...]
    mean_gate: Float[Tensor, " mask"]
    logprob: Float[Tensor, " mask"]
    accuracy: Float[Tensor, " mask"]

    def frame(self) -> "pd.DataFrame":
        """One row per mask."""
        import pandas as pd

        return pd.DataFrame(
            {
                "mask": list(self.names),
                "mean gate": self.mean_gate.tolist(),
                "log P(target)": self.logprob.tolist(),
                "accuracy": self.accuracy.tolist(),
            }
        )


@dataclass(frozen=True)
class GatedTask:
    """One task on one model: its gates, their test, and how they agree with patching."""

    gates: Gates
    ablation: Ablation
    agreement: Agreement | None
    masks: MaskTable
    roles: HeadRoles
    warning: str | None = None

    @property
    def name(self) -> str:
        """The name for headings and messages."""
        return self.gates.name

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about fits that have not converged and a task that the model cannot do."""
        return *self.gates.warnings, *([self.warning] if self.warning else [])

    @property
    def headline(self) -> dict[str, Any]:
        """The numbers of result.json."""
        curves, middle = self.ablation, len(self.ablation.ks) // 2
        half = {order: curves.mean(order)[middle].item() for order in curves.orders}
        return {
            **self.gates.headline,
            "delta_k": curves.ks[middle],
            **{f"delta_{order}": value for order, value in half.items()},
            **(self.agreement.headline if self.agreement else {}),
        }


@dataclass(frozen=True)
class Gating(Result):
    """Every task on every model."""

    tasks: tuple[GatedTask, ...]

    @property
    def headline(self) -> dict[str, Any]:
        """The numbers for every task and model."""
        return {"parts": {part.name: part.headline for part in self.tasks}}

    @property
    def sentence(self) -> str:
        """The roles in words."""
        return " ".join(part.gates.sentence for part in self.tasks)

    @property
    def text(self) -> str:
        """One line per task and model."""
        return "\n".join(part.gates.sentence for part in self.tasks)

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings of every task and model."""
        return tuple(f"{part.name}: {words}" for part in self.tasks for words in part.warnings)

    def frame(self) -> "pd.DataFrame":
        """A tidy frame: seed, layer, head, gates and scores; task and model first if several."""
        return self.joined([part.gates.frame() for part in self.tasks])

    def joined(self, frames: "list[pd.DataFrame]") -> "pd.DataFrame":
        """The tables of all tasks and models, concatenated."""
        import pandas as pd

        if len(frames) == 1:
            return frames[0]
        parts = []
        for task, frame in zip(self.tasks, frames, strict=True):
            part = frame.copy()
            part.insert(0, "task", task.gates.task)
            part.insert(1, "model", task.gates.model)
            parts.append(part)
        return pd.concat(parts, ignore_index=True)


def measure_gates(
    model: Model,
    found: Gates,
    prompts: Prompts,
    *,
    budget: int | None = None,
    quiet: bool = False,
) -> MaskTable:
    """Held-out log probability and accuracy with each mask, soft and cut at 0.5."""
    shape = (1, *found.plus.shape[1:])
    chosen = {
        "no gates": torch.ones(shape),
        "free": found.free,
        "G+": found.plus,
        "G+ cut at 0.5": (found.plus >= LIMIT).float(),
        "G-": found.minus,
        "G- cut at 0.5": (found.minus >= LIMIT).float(),
        "no heads": torch.zeros(shape),
    }
    keep = torch.cat([gates.float() for gates in chosen.values()])
    sizes = [len(gates) for gates in chosen.values()]
    columns = []
    with stages("masks", {"logprob": 1, "top1": 1}, quiet) as progress:
        for metric in progress.weights:
            with progress.stage(metric):
                values = measure_subsets(
                    model, prompts, keep, metric, replacement="zero", budget=budget
                )
            columns.append(torch.stack([part.mean() for part in values.mean(1).split(sizes)]))
    kept = torch.stack([part.mean() for part in keep.mean((1, 2)).split(sizes)])
    return MaskTable(tuple(chosen), kept, *columns)


def gate_task(
    model: Model,
    fitted: Prompts,
    tested: Prompts,
    settings: FitSettings,
    *,
    k: int = 50,
    points: int | None = None,
    patching: bool = True,
    budget: int | None = None,
    quiet: bool = False,
) -> GatedTask:
    """Fit gates to some prompts and test them on others."""
    every = shape_of(model).layers * shape_of(model).heads
    ks = grid(every, k, points)
    settings.check()
    n, batch = settings.seeds, settings.settled(model, len(fitted)).batch or 1
    # In passes; subsets of heads and patched heads rerun only a part of the model.
    weights: dict[str, float] = {
        "Evaluating": 2 * len(tested),
        "Fitting gates": 4.5 * n * settings.updates * batch,
        "Patching heads": len(tested) * (2 + every / 4) if patching else 0,
        "Testing roles": len(tested) * every,
        "Ablating heads": len(tested) * len(ks) * 2 * n,
        "Measuring masks": len(tested) * (2 + 5 * n),
    }
    common: dict[str, Any] = {"budget": budget, "quiet": quiet}
    agreed = None
    with stages("gate", weights, quiet) as progress:
        with progress.stage("Evaluating"):
            judged = evaluate(model, tested, "logprob", quiet=quiet)
        with progress.stage("Fitting gates"):
            found = fit_gates(model, fitted, settings, **common)
        if patching:
            with progress.stage("Patching heads"):
                agreed = agreement(found, patch(model, tested, **common))
        with progress.stage("Testing roles"):
            roles = judge_roles(model, found, tested, **common)
        with progress.stage("Ablating heads"):
            curves = ablate(model, found, tested, ks, **common)
        with progress.stage("Measuring masks"):
            masks = measure_gates(model, found, tested, **common)
    return GatedTask(found, curves, agreed, masks, roles, judged.warning)
