"""The scoring methods by name: the same arguments, the same kind of result, the same sign.

The table needs no torch; a method's module is imported only when the method is called.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any

from mechheads.errors import MechheadsError, unknown
from mechheads.options import read_value
from mechheads.prompts import Prompts

if TYPE_CHECKING:
    from mechheads.models.model import Model

    from .effects import HeadEffects


@dataclass(frozen=True)
class Method:
    """A scoring function in this package; `flags` are its options that few methods share."""

    name: str
    home: str
    summary: str
    flags: tuple[str, ...] = ()

    @property
    def function(self) -> "Callable[..., HeadEffects]":
        """The method itself."""
        module, _, function = self.home.partition(":")
        return getattr(import_module(f".{module}", __package__), function)

    @property
    def options(self) -> dict[str, Parameter]:
        """The keyword-only arguments of the method."""
        parameters = signature(self.function).parameters.values()
        return {p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY}


METHODS: Mapping[str, Method] = {
    method.name: method
    for method in (
        Method(
            "patch", "activation_patching:patch", "exact activation patching, one head at a time"
        ),
        Method(
            "attribution",
            "attribution_patching:attribution",
            "gradient times difference, all heads at once",
        ),
        Method(
            "ig",
            "attribution_patching:ig",
            "integrated gradients: attribution averaged over inputs",
            ("steps",),
        ),
        Method(
            "hybrid", "hybrid:hybrid", "attribution, strongest heads verified", ("verify", "sample")
        ),
        Method(
            "path",
            "path_patching:path_patch",
            "exact direct effect on the logits or a head",
            ("to", "part"),
        ),
        Method("direct", "direct_logit_attribution:direct", "direct logit attribution"),
        Method(
            "gating",
            "head_gating:gating",
            "gates fitted to the task: facilitation minus interference",
            ("seeds", "updates", "batch"),
        ),
    )
}


def find(name: str) -> Method:
    """The method of that name; an unknown name raises an error with suggestions."""
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return METHODS[name]


def check_flags(name: str, given: Mapping[str, Any]) -> None:
    """Raise if the method does not have one of these options; needs no torch."""
    flags = find(name).flags
    for option in given:
        if option not in flags:
            own = ", ".join(f"--{flag}" for flag in flags) or "none"
            raise MechheadsError(
                f"unknown flag --{option.replace('_', '-')}: method {name} has no such option "
                f"(its options: {own})."
            )


def score_heads(
    model: "Model",
    prompts: Prompts,
    method: str = "patch",
    metric: str | None = None,
    **options: Any,
) -> "HeadEffects":
    """Score every head by its effect on a task's metric.

    Args:
        model: what `mechheads.load` returns
        prompts: what `tasks.make` returns
        method: a name in `mechheads.METHODS`: "patch" is exact activation patching, "attribution"
            and "ig" are its gradient estimates, "hybrid" patches only the strongest of these,
            "path" patches direct paths, "direct" is direct logit attribution, "gating" fits gates
        metric: a name in `mechheads.METRICS`; default: the task's own
        options: the method's own options, e.g. `steps=10` for "ig"

    Returns:
        HeadEffects: a value per prompt, layer and head. Positive means that the head helps. "patch"
        costs a partial forward pass per head, "attribution" a few passes in total.

    >>> import mechheads, tasks
    >>> model = mechheads.load("mini")
    >>> prompts = tasks.make("ioi", model, n=16)
    >>> effects = mechheads.score_heads(model, prompts, "patch", quiet=True)
    >>> effects.values.shape
    torch.Size([16, 4, 8])
    >>> list(effects.top(3).name)
    ['L3H4', 'L3H6', 'L2H7']
    """
    for given, wanted in ((model, "load"), (prompts, "tasks.make")):
        if isinstance(given, str):
            raise MechheadsError(
                f"score_heads takes what {wanted} returns, not the name {given!r}."
            )
    found = find(method)
    own = found.options
    for name in options:
        if name not in own:
            raise MechheadsError(f"{method} has no option {name}. Its options: {', '.join(own)}.")
    given = {
        name: read_value(value, own[name].annotation, f"--{name}")
        if isinstance(value, str)
        else value
        for name, value in options.items()
    }
    return found.function(model, prompts, metric, **given)
