"""Changes what an MLP's neurons put out, through its hook points."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor

from mechheads.errors import MechheadsError


@contextlib.contextmanager
def changed_activation(
    name: str,
    layer: int,
    points: Mapping[str, Any],
    act: Callable[[Tensor], Tensor],
    change: Callable[[Tensor], Tensor],
) -> Iterator[None]:
    """Change act(pre) at the hook points "pre", "pre_linear" (if gated) and "post" of an MLP."""
    if points.get("post") is None:
        raise MechheadsError(f"{name} has no MLP in layer {layer} to change.")
    kept: dict[str, Tensor] = {}
    used = {part: point for part, point in points.items() if point is not None}

    def hook_for(part: str) -> Callable[..., Tensor]:
        def hook(value: Tensor, hook: Any) -> Tensor:
            if part != "post":
                kept[part] = value
                return value
            if "pre_linear" not in kept:
                return change(value)
            inner = act(kept["pre"])
            return value + (change(inner) - inner) * kept["pre_linear"]

        return hook

    before = {part: list(point.fwd_hooks) for part, point in used.items()}
    for part, point in used.items():
        point.add_hook(hook_for(part), is_permanent=True)
    try:
        yield
    finally:
        for part, point in used.items():
            for added in [one for one in point.fwd_hooks if one not in before[part]]:
                added.hook.remove()
                point.fwd_hooks.remove(added)
