"""Scores from one backward pass by layers, in which a method changes how gradients flow."""
