"""Which attention heads do the job? Causal head effects and circuits on TransformerLens models.

>>> import mechheads, tasks
>>> model = mechheads.load("mini")
>>> prompts = tasks.make("ioi", model, n=16)
>>> effects = mechheads.score_heads(model, prompts, "patch", quiet=True)
>>> effects.top(1).name.item()
'L3H4'
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mechheads.packages import no_garbage_collection, warn_if_hidden

if TYPE_CHECKING:
    from mechheads.engine.generate import generate as generate
    from mechheads.engine.head_subsets import measure_subsets as measure_subsets
    from mechheads.errors import MechheadsError as MechheadsError
    from mechheads.metrics.token import METRICS as METRICS
    from mechheads.metrics.token import register_metric as register_metric
    from mechheads.models.load import load as load
    from mechheads.models.wrap import wrap as wrap
    from mechheads.observe.activity import head_activity as head_activity
    from mechheads.observe.evaluation import evaluate as evaluate
    from mechheads.observe.head_types import head_types as head_types
    from mechheads.observe.patterns import attend as attend
    from mechheads.scoring.ablation import ablate as ablate
    from mechheads.scoring.activation_patching import patch_positions as patch_positions
    from mechheads.scoring.edge_attribution import edge_attribution as edge_attribution
    from mechheads.scoring.gate_fitting import fit_gates as fit_gates
    from mechheads.scoring.path_patching import path_patch as path_patch
    from mechheads.scoring.registry import METHODS as METHODS
    from mechheads.scoring.registry import register_method as register_method
    from mechheads.scoring.registry import score_heads as score_heads

__version__ = "0.1.0"

# Imported on first use: torch takes seconds, and `--help` must not wait for it.
_HOMES = {
    "METHODS": "scoring.registry",
    "METRICS": "metrics.token",
    "MechheadsError": "errors",
    "ablate": "scoring.ablation",
    "attend": "observe.patterns",
    "edge_attribution": "scoring.edge_attribution",
    "evaluate": "observe.evaluation",
    "fit_gates": "scoring.gate_fitting",
    "generate": "engine.generate",
    "head_activity": "observe.activity",
    "head_types": "observe.head_types",
    "load": "models.load",
    "measure_subsets": "engine.head_subsets",
    "patch_positions": "scoring.activation_patching",
    "path_patch": "scoring.path_patching",
    "register_method": "scoring.registry",
    "register_metric": "metrics.token",
    "score_heads": "scoring.registry",
    "wrap": "models.wrap",
}
__all__ = [
    "METHODS",
    "METRICS",
    "MechheadsError",
    "__version__",
    "ablate",
    "attend",
    "edge_attribution",
    "evaluate",
    "fit_gates",
    "generate",
    "head_activity",
    "head_types",
    "load",
    "measure_subsets",
    "patch_positions",
    "path_patch",
    "register_method",
    "register_metric",
    "score_heads",
    "wrap",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mechheads' has no attribute {name!r}")
    warn_if_hidden()
    with no_garbage_collection():
        home = import_module(f".{_HOMES[name]}", __name__)
    return getattr(home, name)


def __dir__() -> list[str]:
    return sorted(__all__)
