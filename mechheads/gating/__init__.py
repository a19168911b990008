"""Causal head gating: which heads facilitate a task, which interfere, which do not matter.

After Nam et al. 2025, arXiv:2505.13737. A gate in (0, 1) scales each head's z, at all positions
and for all prompts; the model stays as it is. `fitting` finds gates, `roles` reads them,
`ablation` tests them, `contrast` finds heads that one kind of prompt needs and another does not.
"""

from .ablation import Ablation, ablate, grid
from .fitting import Recipe, fit_gates
from .roles import Gating, agreement

__all__ = ["Ablation", "Gating", "Recipe", "ablate", "agreement", "fit_gates", "grid"]
