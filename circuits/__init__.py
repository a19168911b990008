"""Circuits, explained-effect curves, comparisons and reports.

>>> import circuits, mechheads, tasks
>>> model = mechheads.load("mini")
>>> prompts = tasks.make("ioi", model, n=64)
>>> found = circuits.discover(model, prompts, quiet=True)
>>> found.circuit.heads[0]
(3, 4)
"""

from .certainty import (
    Alternatives,
    Inclusion,
    PromptClusters,
    alternative_circuits,
    inclusion,
    several_circuits,
)
from .circuit import Circuit
from .comparison import Comparison, compare
from .curve import Curve, explained_effect_curve
from .discovery import Discovery
from .edges import (
    EdgeComparison,
    EdgeCurve,
    EdgeDiscovery,
    compare_edges,
    discover_edges,
    edge_curve,
)
from .experiment import discover
from .leaderboard import Leaderboard, Round, rank_methods
from .literature import published
from .validation import Faithfulness, faithfulness

__all__ = [
    "Alternatives",
    "Circuit",
    "Comparison",
    "Curve",
    "Discovery",
    "EdgeComparison",
    "EdgeCurve",
    "EdgeDiscovery",
    "Faithfulness",
    "Inclusion",
    "Leaderboard",
    "PromptClusters",
    "Round",
    "alternative_circuits",
    "compare",
    "compare_edges",
    "discover",
    "discover_edges",
    "edge_curve",
    "explained_effect_curve",
    "faithfulness",
    "inclusion",
    "published",
    "rank_methods",
    "several_circuits",
]
