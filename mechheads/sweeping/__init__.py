"""Resumable grids of runs, in this process or on a Ray cluster."""
