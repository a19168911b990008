"""Causal head gating: which heads facilitate a task, which interfere, which do not matter.

After Nam et al. 2025, arXiv:2505.13737. A gate in (0, 1) scales each head's z, at all positions
and for all prompts; the model stays as it is. `fitting` finds gates, `roles` reads them,
`ablation` tests them, `contrast` finds heads that one kind of prompt needs and another does not.
"""

from mechheads.scoring.gate_fitting import Recipe, fit_gates
from mechheads.scoring.gate_roles import Gating, agreement

from .ablation import Ablation, ablate, grid

__all__ = ["Ablation", "Gating", "Recipe", "ablate", "agreement", "fit_gates", "grid"]
