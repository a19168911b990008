"""Reruns a run folder and compares the numbers."""
