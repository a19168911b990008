"""One task on one model: gates are fitted to some prompts, and judged on others.

1. Three fits of every seed (`fitting`), on the prompts that fit.
2. On those that test: exact patching for comparison, the ablation curves of every role, and what
   each mask keeps.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from mechheads.engine.head_subsets import measure_subsets
from mechheads.models.model import Model, shape_of
from mechheads.observe.evaluation import evaluate
from mechheads.prompts import Prompts
from mechheads.scoring.activation_patching import patch
from mechheads.scoring.gate_fitting import Recipe, fit_gates
from mechheads.scoring.gate_roles import FITS, LIMIT, NAMES, Agreement, Gating, agreement

from .ablation import Ablation, ablate, grid

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Cell:
    """One task on one model: its gates, their test, and how they agree with patching."""

    gating: Gating
    ablation: Ablation
    agreement: Agreement | None
    masks: "pd.DataFrame"
    warning: str | None = None

    @property
    def name(self) -> str:
        """For headings and messages."""
        return self.gating.name

    @property
    def headline(self) -> dict[str, Any]:
        """The numbers of result.json."""
        found = self.gating
        curves, middle = self.ablation, len(self.ablation.ks) // 2
        half = {order: curves.mean(order)[middle].item() for order in curves.orders}
        return {
            **{f"share_{role}": share for role, share in found.shares().items()},
            "delta_k": curves.ks[middle],
            **{f"delta_{order}": value for order, value in half.items()},
            "nll_ungated": found.ungated,
            **{f"nll_{fit}": found.nll[i].mean().item() for i, fit in enumerate(FITS)},
            "batch": found.settings["batch"],
            **(self.agreement.headline if self.agreement else {}),
            "warnings": [*found.warnings, *([self.warning] if self.warning else [])],
        }

    @property
    def sentence(self) -> str:
        """The roles in words."""
        shares = self.gating.shares()
        parts = ", ".join(f"{shares[role]:.0%} {NAMES[role]}" for role in shares)
        return f"Of the {self.gating.plus[0].numel()} heads, for {self.name}: {parts}."


def measure_gates(
    model: Model, found: Gating, prompts: Prompts, *, budget: int | None = None
) -> "pd.DataFrame":
    """Held-out log probability and accuracy with each mask, soft and cut at 0.5; mean of seeds."""
    import pandas as pd

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
    columns = {}
    for name, metric in (("log P(target)", "logprob"), ("accuracy", "top1")):
        values = measure_subsets(
            model, prompts, keep, metric, replacement="zero", budget=budget, quiet=True
        )
        columns[name] = [part.mean().item() for part in values.mean(1).split(sizes)]
    kept = [part.mean().item() for part in keep.mean((1, 2)).split(sizes)]
    return pd.DataFrame({"mask": list(chosen), "mean gate": kept} | columns)


def measure_cell(
    model: Model,
    fitted: Prompts,
    tested: Prompts,
    recipe: Recipe,
    *,
    k: int = 50,
    points: int | None = None,
    patching: bool = True,
    budget: int | None = None,
    quiet: bool = False,
) -> Cell:
    """Gates fitted to some prompts, and what others say of them."""
    ks = grid(shape_of(model).layers * shape_of(model).heads, k, points)
    judged = evaluate(model, tested, "logprob", quiet=True)
    found = fit_gates(model, fitted, recipe, budget=budget, quiet=quiet)
    agreed = None
    if patching:
        agreed = agreement(found, patch(model, tested, budget=budget, quiet=quiet))
    curves = ablate(model, found, tested, ks, budget=budget, quiet=quiet)
    masks = measure_gates(model, found, tested, budget=budget)
    return Cell(found, curves, agreed, masks, judged.warning)
