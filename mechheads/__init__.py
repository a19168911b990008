"""mechheads: which attention heads do the job?

import mechheads, tasks

model = mechheads.load("smollm2")
prompts = tasks.make("ioi", mechheads.lexicon(model), n=32)
print(mechheads.evaluate(model, prompts).summary())
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .batches import Batch as Batch
    from .edges import Edges as Edges
    from .edges import count_edges as count_edges
    from .errors import MechheadsError as MechheadsError
    from .evaluation import Evaluation as Evaluation
    from .evaluation import evaluate as evaluate
    from .metrics import METRICS as METRICS
    from .models import Model as Model
    from .models import lexicon as lexicon
    from .models import load as load
    from .prompts import Pair as Pair
    from .prompts import Prompts as Prompts

# Imported on first use: torch takes seconds, and `--help` must not wait for it.
_HOMES = {
    "Batch": "batches",
    "Edges": "edges",
    "Evaluation": "evaluation",
    "METRICS": "metrics",
    "MechheadsError": "errors",
    "Model": "models",
    "Pair": "prompts",
    "Prompts": "prompts",
    "count_edges": "edges",
    "evaluate": "evaluation",
    "lexicon": "models",
    "load": "models",
}
__all__ = [
    "METRICS",
    "Batch",
    "Edges",
    "Evaluation",
    "MechheadsError",
    "Model",
    "Pair",
    "Prompts",
    "count_edges",
    "evaluate",
    "lexicon",
    "load",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mechheads' has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
