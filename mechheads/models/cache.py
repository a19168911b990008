"""Keeps models loaded between runs, so that a sweep reads each of them once."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

MOST = 2
LARGE = 2_000_000_000  # bytes: a model larger than this is not kept alongside another


@dataclass(frozen=True)
class ModelCache:
    """The most recently used models, by the arguments they were loaded with."""

    models: dict[Hashable, Any] = field(default_factory=dict)

    def get(self, key: Hashable) -> Any:
        """The model that was loaded with these arguments, or None.

        On a miss, makes room for the next model: the least recently used are evicted while there
        are too many or any is large.
        """
        if key in self.models:
            self.models[key] = self.models.pop(key)  # the most recent comes last
            return self.models[key]
        while len(self.models) >= MOST or any(map(_is_large, self.models.values())):
            del self.models[next(iter(self.models))]
        return None

    def put(self, key: Hashable, model: Any) -> None:
        """Keep a model."""
        self.models[key] = model


def _is_large(model: Any) -> bool:
    return sum(p.numel() * p.element_size() for p in model.parameters()) > LARGE
