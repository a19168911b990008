"""Circuits of edges: which edges between heads do a task, and how much of it they explain."""

from .comparison import EdgeComparison, compare_edges
from .curve import EdgeCurve, edge_curve
from .discovery import EdgeDiscovery, discover_edges

__all__ = [
    "EdgeComparison",
    "EdgeCurve",
    "EdgeDiscovery",
    "compare_edges",
    "discover_edges",
    "edge_curve",
]
