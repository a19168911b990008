"""Scoring methods compared: which of them finds the better circuit, on which models and tasks?"""

from .board import Leaderboard
from .experiment import rank_methods
from .rounds import Round

__all__ = ["Leaderboard", "Round", "rank_methods"]
