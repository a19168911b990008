"""The scoring methods by name: the same arguments, the same kind of result, the same sign."""

from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any

from .effects import HeadEffects
from .errors import MechheadsError, unknown
from .gradients import attribution, ig
from .models import Model
from .patching import patch
from .paths import path
from .prompts import Prompts
from .screening import hybrid
from .writes import direct

Method = Callable[..., HeadEffects]

METHODS: Mapping[str, Method] = {
    "patch": patch,
    "attribution": attribution,
    "ig": ig,
    "hybrid": hybrid,
    "path": path,
    "direct": direct,
}


def score_heads(
    model: Model,
    prompts: Prompts,
    method: str = "patch",
    metric: str | None = None,
    **options: Any,
) -> HeadEffects:
    """score_heads(model, prompts, "ig", steps=10): every head's effect by a method of the table."""
    if method not in METHODS:
        raise unknown("method", method, METHODS)
    function = METHODS[method]
    own = [n for n, p in signature(function).parameters.items() if p.kind is p.KEYWORD_ONLY]
    for name in options:
        if name not in own:
            raise MechheadsError(f"{method} has no option {name}. It has {', '.join(own)}.")
    return function(model, prompts, metric, **options)
