"""How sure is a circuit: inclusion of its heads, alternatives, several circuits in a task."""

from .alternatives import Alternatives, alternative_circuits
from .inclusion import Inclusion, inclusion
from .mixture import PromptClusters, several_circuits

__all__ = [
    "Alternatives",
    "Inclusion",
    "PromptClusters",
    "alternative_circuits",
    "inclusion",
    "several_circuits",
]
