"""Models that stay loaded between runs, so that a sweep reads each of them once."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

MOST = 2
LARGE = 2_000_000_000  # bytes: a model larger than this does not stay beside another


@dataclass(frozen=True)
class ModelCache:
    """The models that were loaded last, by what they were loaded with."""

    models: dict[Hashable, Any] = field(default_factory=dict)

    def get(self, key: Hashable) -> Any:
        """The model that was loaded with these arguments, or None.

        On a miss, room is made for the one that will be loaded next: of too many, the least
        recently used go first, and beside a large model none stays.
        """
        if key in self.models:
            self.models[key] = self.models.pop(key)  # the newest is the last
            return self.models[key]
        while len(self.models) >= MOST or any(map(_is_large, self.models.values())):
            del self.models[next(iter(self.models))]
        return None

    def put(self, key: Hashable, model: Any) -> None:
        """Keep a model."""
        self.models[key] = model


def _is_large(model: Any) -> bool:
    return sum(p.numel() * p.element_size() for p in model.parameters()) > LARGE
