"""Grids of runs that survive being stopped: in this process, or on a Ray cluster."""
