"""mechheads: which attention heads do the job?

import mechheads, tasks

model = mechheads.load("mini")
prompts = tasks.make("ioi", mechheads.lexicon(model), n=32)
print(mechheads.evaluate(model, prompts).summary())
print(mechheads.score_heads(model, prompts, "patch").top(5))
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mechheads.errors import MechheadsError as MechheadsError
    from mechheads.metrics.token import METRICS as METRICS
    from mechheads.models.load import load as load
    from mechheads.models.model import Model as Model
    from mechheads.observe.edges import Edges as Edges
    from mechheads.observe.edges import count_edges as count_edges
    from mechheads.observe.evaluation import Evaluation as Evaluation
    from mechheads.observe.evaluation import evaluate as evaluate
    from mechheads.observe.head_types import HeadTypes as HeadTypes
    from mechheads.observe.head_types import head_types as head_types
    from mechheads.prompts import Pair as Pair
    from mechheads.prompts import Prompts as Prompts
    from mechheads.prompts import lexicon_of as lexicon_of
    from mechheads.prompts.batches import Batch as Batch
    from mechheads.scoring.activation_patching import patch_positions as patch_positions
    from mechheads.scoring.effects import HeadEffects as HeadEffects
    from mechheads.scoring.effects import PositionEffects as PositionEffects
    from mechheads.scoring.path_patching import EdgeEffects as EdgeEffects
    from mechheads.scoring.path_patching import edge_attribution as edge_attribution
    from mechheads.scoring.registry import METHODS as METHODS
    from mechheads.scoring.registry import score_heads as score_heads

# Imported on first use: torch takes seconds, and `--help` must not wait for it.
_HOMES = {
    "Batch": "batches",
    "EdgeEffects": "paths",
    "Edges": "edges",
    "Evaluation": "evaluation",
    "HeadEffects": "effects",
    "HeadTypes": "kinds",
    "METHODS": "methods",
    "METRICS": "metrics",
    "MechheadsError": "errors",
    "Model": "models",
    "Pair": "prompts",
    "PositionEffects": "effects",
    "Prompts": "prompts",
    "count_edges": "edges",
    "edge_attribution": "paths",
    "evaluate": "evaluation",
    "head_types": "kinds",
    "lexicon": "models",
    "load": "models",
    "patch_positions": "patching",
    "score_heads": "methods",
}
__all__ = [
    "METHODS",
    "METRICS",
    "Batch",
    "EdgeEffects",
    "Edges",
    "Evaluation",
    "HeadEffects",
    "HeadTypes",
    "MechheadsError",
    "Model",
    "Pair",
    "PositionEffects",
    "Prompts",
    "count_edges",
    "edge_attribution",
    "evaluate",
    "head_types",
    "lexicon",
    "load",
    "patch_positions",
    "score_heads",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mechheads' has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
