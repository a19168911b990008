"""The scoring methods by name: the same arguments, the same kind of result, the same sign.

The table needs no torch; a method's module is imported only when the method is called.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from inspect import Parameter, getdoc, signature
from typing import TYPE_CHECKING, Any

from mechheads.errors import MechheadsError, unknown
from mechheads.options import read_pairs, read_value
from mechheads.plugins import Table
from mechheads.prompts import Prompts, check_given

if TYPE_CHECKING:
    from mechheads.metrics import MetricLike
    from mechheads.models.model import Model

    from .effects import HeadEffects


# Options that the commands have flags of their own for.
SHARED = ("direction", "replacement", "budget", "quiet")


@dataclass(frozen=True)
class Method:
    """A scoring function, or its place in this package ("module:function").

    It takes (model, prompts, metric) and options by keyword. `flags` are its options that few
    methods share: those are flags of the commands.

    `passes` says about how many forward passes it takes, for progress bars: a function of the
    numbers of heads and prompts, and of the options given. `patched` says how many heads
    are patched one by one, each of which counts there as a quarter of a pass per prompt. `preset`
    are options that were written after the name, as in "ig:steps=10"; `short` is the one whose name
    can be left out there, as in "ensemble:patch,ig".

    `one_by_one` says whether, with these options, a prompt's effects do not depend on the other
    prompts, so that prompts can be added to those that have been scored.
    """

    name: str
    home: "str | Callable[..., Any]"
    summary: str = ""
    flags: tuple[str, ...] = ()
    passes: Callable[[int, int, Mapping[str, Any]], float] = lambda heads, n, given: 2 * n
    patched: Callable[[int, Mapping[str, Any]], float] = lambda heads, given: 0.0
    one_by_one: Callable[[Mapping[str, Any]], bool] = lambda given: False
    short: str = ""
    preset: Mapping[str, str] = field(default_factory=dict)

    @property
    def function(self) -> "Callable[..., Any]":
        """The method itself."""
        if not isinstance(self.home, str):
            return self.home
        module, _, function = self.home.partition(":")
        return getattr(import_module(f".{module}", __package__), function)

    @property
    def options(self) -> dict[str, Parameter]:
        """The keyword-only arguments of the method, but for those that are preset."""
        return {name: p for name, p in self._keywords.items() if name not in self.preset}

    @property
    def given(self) -> dict[str, Any]:
        """The preset options as the types that the method takes; an error if one cannot be."""
        return {
            name: read_value(text, self._keywords[name].annotation, f"{self.name}: {name}")
            for name, text in self.preset.items()
        }

    @property
    def _keywords(self) -> dict[str, Parameter]:
        parameters = signature(self.function).parameters.values()
        return {p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY}


def _number(given: Mapping[str, Any], name: str, default: int) -> float:
    """An option as a number; the default if it is not one, which the method will refuse."""
    try:
        return min(max(min(1.0, float(default)), float(given.get(name) or default)), 1e9)
    except (TypeError, ValueError, OverflowError):
        return float(default)


def _members(heads: int, n: int, given: Mapping[str, Any]) -> float:
    """What the members of an ensemble take; nothing for those that are unknown."""
    names = split_members(str(given.get("members", "patch,ig")))
    known = [METHODS[name] for name in names if name in METHODS and name != "ensemble"]
    return sum(method.passes(heads, n, {}) for method in known)


def _alone(given: Mapping[str, Any]) -> bool:
    """A prompt is scored alone unless heads are replaced by means over all prompts."""
    return given.get("replacement", "corrupt") not in ("mean", "position_mean")


METHODS = Table(
    "method",
    Method,
    (
        Method(
            "patch",
            "activation_patching:patch",
            "exact activation patching, one head at a time",
            passes=lambda heads, n, given: n * (2 + heads / 4),
            patched=lambda heads, given: heads,
            one_by_one=_alone,
        ),
        Method(
            "attribution",
            "attribution_patching:attribution",
            "gradient times difference, all heads at once",
            one_by_one=_alone,
        ),
        Method(
            "ig",
            "attribution_patching:ig",
            "integrated gradients: attribution averaged over inputs",
            ("steps",),
            lambda heads, n, given: 1.5 * n * _number(given, "steps", 5),
            one_by_one=_alone,
        ),
        Method(
            "atp",
            "backward.atp:atp",
            "AtP*: attribution that sees through a saturated softmax",
            ("drop", "neurons", "subsets"),
            lambda heads, n, given: n * (8 + _number(given, "subsets", 0) / 2),
        ),
        Method(
            "gim",
            "backward.gim:gim",
            "attribution with the backward pass of GIM",
            ("temperature",),
            lambda heads, n, given: 5 * n,
            one_by_one=_alone,
        ),
        Method(
            "hybrid",
            "screened.hybrid:hybrid",
            "atp, strongest heads verified",
            ("verify", "sample", "subsets"),
            lambda heads, n, given: n * (8 + heads / 12 + _number(given, "subsets", 0) / 2),
            patched=lambda heads, given: heads / 3,
        ),
        Method(
            "auto",
            "screened.auto:auto",
            "patch if that takes at most --time minutes here, else hybrid",
            ("time",),
            lambda heads, n, given: n * (2 + heads / 4),
            patched=lambda heads, given: heads,
        ),
        Method(
            "ensemble",
            "ensemble:ensemble",
            "mean rank of several methods, e.g. ensemble:patch,ig",
            ("members",),
            _members,
            short="members",
        ),
        Method(
            "path",
            "path_patching:path_patch",
            "exact effect of paths to the logits or to heads",
            ("to", "part", "senders", "mlps", "positions"),
            lambda heads, n, given: (
                n * (2 + (heads / 2 if str(given.get("to", "logits")) != "logits" else 0))
            ),
            one_by_one=_alone,
        ),
        Method(
            "direct",
            "direct_logit_attribution:direct",
            "direct logit attribution",
            one_by_one=_alone,
        ),
        Method(
            "gating",
            "head_gating:gating",
            "gates fitted to the task: facilitation minus interference",
            ("seeds", "updates", "batch"),
            lambda heads, n, given: (
                4.5
                * _number(given, "seeds", 10)
                * _number(given, "updates", 500)
                * min(_number(given, "batch", 8), n)
            ),
        ),
    ),
    adopt=lambda name, function: _own(name, function),
)


def register_method(
    name: str, *, replace: bool = False
) -> "Callable[[Callable[..., Any]], Callable[..., Any]]":
    """Register your own scoring method, as a decorator of its function.

    The function takes (model, prompts, metric) and options by keyword, and returns HeadEffects or a
    tensor: a score per layer and head, or per prompt, layer and head. The method then works
    wherever a method's name does.

    Args:
        name: what the method is called
        replace: replace a method of that name, for example when a notebook cell is run again

    Returns:
        The decorator, which returns the function unchanged.

    >>> import mechheads, tasks, torch
    >>> @mechheads.register_method("by_norm", replace=True)
    ... def by_norm(model, prompts, metric):
    ...     return torch.stack([block.attn.W_O.norm(dim=(1, 2)) for block in model.blocks])
    >>> model = mechheads.load("mini")
    >>> mechheads.score_heads(model, tasks.make("ioi", model, n=4), "by_norm").scores.shape
    torch.Size([4, 8])
    """

    def add(function: "Callable[..., Any]") -> "Callable[..., Any]":
        METHODS.register(_own(name, function), replace=replace)
        return function

    return add


def find(name: "str | Callable[..., Any]") -> Method:
    """The method of that name, or a function as a method; an unknown name raises an error.

    "ig:steps=10" is the method ig with an option chosen (several are joined by plus signs), and
    "ensemble:patch,ig" the method ensemble with its members.
    """
    if not isinstance(name, str) and not callable(name):
        raise MechheadsError(
            f"A method is a name or a function, got {type(name).__name__}. Names: "
            f"{', '.join(METHODS)}."
        )
    if callable(name):
        return _own(getattr(name, "__name__", type(name).__name__), name)
    plain, colon, text = name.partition(":")
    if plain not in METHODS:
        raise unknown("method", plain, METHODS)
    found = METHODS[plain]
    if not colon:
        return found
    preset = _preset(found, text)
    return replace(
        found,
        name=name,
        flags=tuple(flag for flag in found.flags if flag not in preset),
        passes=lambda heads, n, given: found.passes(heads, n, {**given, **preset}),
        patched=lambda heads, given: found.patched(heads, {**given, **preset}),
        preset=preset,
    )


def _preset(method: Method, text: str) -> dict[str, str]:
    """The options that are written after a method's name and a colon."""
    if not method.flags:
        raise MechheadsError(f"The method {method.name} takes nothing after a colon, got {text!r}.")
    if method.short and "=" not in text:
        check_members(text)
        return {method.short: text}
    preset = read_pairs(text, f"The method {method.name}:")
    check_flags(method.name, preset)
    return preset


def split_members(text: str) -> list[str]:
    """The methods of an ensemble: commas separate them, or plus signs inside a list of methods."""
    return [part.strip() for part in text.replace("+", ",").split(",") if part.strip()]


def check_members(text: str) -> list[str]:
    """The methods of an ensemble; an error if they are not two or more different known ones."""
    names = split_members(text)
    for name in names:
        if name not in METHODS or name == "ensemble":
            raise unknown("method in an ensemble:", name, [m for m in METHODS if m != "ensemble"])
    if len(set(names)) < max(2, len(names)):
        raise MechheadsError(
            f"An ensemble takes two or more different methods, got {text!r}. In a list of methods, "
            "join them with plus signs: ensemble:patch+ig."
        )
    return names


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
    method: "str | Callable[..., Any]" = "patch",
    metric: "MetricLike | None" = None,
    **options: Any,
) -> "HeadEffects":
    """Score every head by its effect on a task's metric.

    Args:
        model: what `mechheads.load` returns
        prompts: what `tasks.make` returns
        method: a name in `mechheads.METHODS`: "patch" is exact activation patching, "attribution"
            and "ig" are its gradient estimates, "atp" and "gim" correct the gradient, "hybrid"
            patches only the strongest heads of "atp", "auto" is "patch" if that does not take too
            long here, else "hybrid", "path" patches direct paths, "direct" is
            direct logit attribution, "gating" fits gates, "ensemble:patch,ig" is the mean rank of
            several; "ig:steps=10" has an option with it. Or your own function of (model, prompts,
            metric): see `register_method`
        metric: a name in `mechheads.METRICS`, or your own function; default: the task's own
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
    from mechheads.models.wrap import lens_of

    lens_of(model)  # raises if it is not a model
    check_given(prompts)
    found = find(method)
    own = found.options
    for name in ("quiet", "budget"):  # what your function may leave out
        if name not in own:
            options.pop(name, None)
    for name in options:
        if name not in own:
            listed = ", ".join(own) or "none"
            raise MechheadsError(f"{found.name} has no option {name}. Its options: {listed}.")
    given = {
        name: read_value(value, own[name].annotation, f"--{name}")
        if isinstance(value, str) and name in own
        else value
        for name, value in options.items()
    }
    given |= found.given
    try:
        returned = found.function(model, prompts, metric, **given)
    except MechheadsError:
        raise
    except Exception as error:
        if isinstance(found.home, str):
            raise  # ours: a bug, which its traceback explains
        raise MechheadsError(
            f"The method {found.name} raised {type(error).__name__}: {error}"
        ) from error
    return _checked(returned, found, model, prompts, metric)


def _own(name: str, function: "Callable[..., Any]") -> Method:
    """A user's function as a method; its first sentence is the summary."""
    document = (getdoc(function) or "your own method").partition("\n")[0]
    found = Method(name, function, document.rstrip("."))
    flags = tuple(option for option in found.options if option not in SHARED)
    return Method(name, function, found.summary, flags)


def _checked(
    found: Any, method: Method, model: "Model", prompts: Prompts, metric: "MetricLike | None"
) -> "HeadEffects":
    """What a method returned, as HeadEffects of this model's heads; or an error that names it."""
    import torch

    from mechheads.models.model import model_name, shape_of

    from .effects import HeadEffects, given_effects

    if not isinstance(found, HeadEffects):
        if type(found).__module__ == "numpy":
            found = torch.as_tensor(found)
        if not isinstance(found, torch.Tensor):
            raise MechheadsError(
                f"The method {method.name} returned {type(found).__name__}, expected HeadEffects "
                "or a tensor of a score per layer and head."
            )
        found = given_effects(model, prompts, metric, found, method.name)
    grid = shape_of(model).grid
    if found.values.shape[1:] != grid and found.unit == "head":
        raise MechheadsError(
            f"The method {method.name} returned {' x '.join(map(str, found.values.shape[1:]))} "
            f"heads, but {model_name(model)} has {grid[0]} x {grid[1]}."
        )
    if not bool(found.values.isfinite().all()):
        raise MechheadsError(f"The method {method.name} returned scores that are not finite.")
    return found
