"""Models that stay loaded between runs of one process, for whoever asks for that."""

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any

MOST = 2
LARGE = 2_000_000_000  # bytes: a model larger than this does not stay beside another
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
    """The model that was loaded with these arguments; without it, there is room for it now.

    Who asks loads it next: of too many, those that were not used for longest are forgotten before,
    and with a large one all that are there.
    """
    if _MODELS is None:
        return None
    if key in _MODELS:
        _MODELS[key] = _MODELS.pop(key)  # the newest is the last
        return _MODELS[key]
    while len(_MODELS) >= MOST or any(_bytes(model) > LARGE for model in _MODELS.values()):
        del _MODELS[next(iter(_MODELS))]
    return None


def put(key: Hashable, model: Any) -> None:
    """Remember a model."""
    if _MODELS is not None:
        _MODELS[key] = model


def _bytes(model: Any) -> int:
    return sum(p.numel() * p.element_size() for p in model.parameters())
