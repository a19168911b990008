"""Causal head gating: which heads facilitate a task, which interfere, and which do not matter.

After Nam et al. 2025, arXiv:2505.13737. A gate in (0, 1) scales each head's z, at all positions
and for all prompts; the model stays frozen. `scoring.gate_fitting` fits gates and
`scoring.gate_roles` reads them; here `ablation` tests them, `agreement` compares them with
patching, and `contrast` finds heads that one kind of prompt needs and another does not.
"""
