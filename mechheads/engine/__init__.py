"""Runs models with heads intervened on, many variants in one pass.

`interventions` say what happens to heads' outputs; a `CachedRun` keeps what a run computed, so that
only what changes runs again. Two engines do the same: `direct` is fast and knows common blocks,
`hooked` runs the model's own. `select` chooses, after holding one to the other.
"""
