"""Runs models with interventions on heads, many variants in one pass.

`interventions` define what happens to head outputs; a `CachedRun` keeps what a run computed, so
that only what changes is rerun. Two engines do the same: `direct` is fast and supports common
blocks, `hooked` runs the model's own. `select` picks one after comparing them.
"""
