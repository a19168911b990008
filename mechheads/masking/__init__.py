"""Masking heads while a model answers: the most important ones against as many at random.

After "Cognitive heads": `selection` says which heads, `experiment` lets the model answer without
them, `quality` judges the text, `probe` ranks heads by how well they tell functions apart.
"""

from .experiment import Masking, gather, mask_heads
from .selection import read_sizes

__all__ = ["Masking", "gather", "mask_heads", "read_sizes"]
