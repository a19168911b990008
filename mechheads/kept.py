"""Models that stay loaded between runs of one process, for whoever asks for that."""

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any

MOST = 2
_MODELS: dict[Hashable, Any] | None = None


def keep_models() -> None:
    """From now on the last models stay loaded, and loading one of them again gives it at once."""
    global _MODELS
    _MODELS = {} if _MODELS is None else _MODELS


@contextmanager
def keeping_models() -> Iterator[None]:
    """The same while active."""
    global _MODELS
    before = _MODELS
    keep_models()
    try:
        yield
    finally:
        _MODELS = before


def kept(key: Hashable) -> Any:
    """The model that was loaded with these arguments, if it is still there."""
    return None if _MODELS is None else _MODELS.get(key)


def put(key: Hashable, model: Any) -> None:
    """Remember a model, and forget the oldest of too many."""
    if _MODELS is None:
        return
    while len(_MODELS) >= MOST:
        del _MODELS[next(iter(_MODELS))]
    _MODELS[key] = model
