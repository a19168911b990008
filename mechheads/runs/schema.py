"""Checks a result that was read from a file: an untrusted file may contain anything.

The dataclass is the schema. Every field must have its annotated type; tensors must have the shapes
that the annotations name, and the same name must mean the same size throughout a result; none may
be empty, and floats must be float32, and finite unless the class lists the field in `NOT_FINITE`. A
class may add a method `check` for what types cannot say, such as the range of a count. Last, the
result must be able to sum itself up.
"""

import dataclasses
import math
import types
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import torch
from jaxtyping import AbstractArray, jaxtyped
from torch import Tensor

# What arithmetic on parts that do not fit together may raise.
UNFIT = (
    LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError, StopIteration
)  # fmt: skip

# Where a tensor or a result is, it, and the annotation of the tensor.
Part = tuple[str, Any, Any]


def check_result(result: Any, name: str = "") -> None:
    """Raise a ValueError that names the first field that does not fit."""
    hints = get_type_hints(type(result), include_extras=True)
    loose = getattr(type(result), "NOT_FINITE", ())
    inner: list[Part] = []
    for field in dataclasses.fields(result):
        where = f"{name}{field.name}"
        value = getattr(result, field.name)
        _check(value, hints[field.name], where, field.name in loose, inner)
    # Sizes are compared within one function: the test run gives each function sizes of its own.
    with jaxtyped("context"):
        for where, part, kind in inner:
            if kind is not None and not isinstance(part, kind):
                raise ValueError(
                    f"{where} has shape {tuple(part.shape)} and type {part.dtype}, expected "
                    f"{kind.__name__}"
                )
    for where, part, kind in inner:
        if kind is None:
            check_result(part, f"{where}.")
    if callable(more := getattr(result, "check", None)):
        more()
    try:  # what does not fit together, such as a curve and its axis, shows when it is summed up
        for summary in ("headline", "sentence", "warnings"):
            getattr(result, summary, None)
        getattr(result, "frame", list)()
    except UNFIT as error:
        raise ValueError(f"{name or 'it '}does not fit together: {error}") from None


def _check(value: Any, kind: Any, where: str, loose: bool, inner: list[Part]) -> None:
    """Check a value against its annotation; tensors and results in it are collected for later."""
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any:
        return
    if isinstance(kind, type) and issubclass(kind, AbstractArray):
        _check_tensor(value, where, loose)
        inner.append((where, value, kind))
    elif dataclasses.is_dataclass(kind):
        _expect(isinstance(value, kind), where, kind, value)  # pyright: ignore[reportArgumentType]
        inner.append((where, value, None))
    elif origin in (Union, types.UnionType):
        _check_union(value, args, where, loose, inner)
    elif origin is Literal:
        _expect(value in args, where, f"one of {args}", value)
    elif origin is tuple:
        _check_tuple(value, args, where, loose, inner)
    elif origin in (Mapping, dict):
        _expect(isinstance(value, Mapping), where, "a table", value)
        for key, part in value.items():
            _check(key, args[0], f"a key of {where}", loose, inner)
            _check(part, args[1], f"{where}[{key!r}]", loose, inner)
    elif kind is float:
        fits = isinstance(value, float) and (loose or math.isfinite(value))
        _expect(fits or _is_whole(value), where, "a finite number", value)
    elif kind is int:
        _expect(_is_whole(value), where, "an integer", value)
    elif isinstance(kind, type):
        _expect(isinstance(value, kind), where, kind.__name__, value)


def _check_union(
    value: Any, kinds: tuple[Any, ...], where: str, loose: bool, inner: list[Part]
) -> None:
    if value is None and type(None) in kinds:
        return None
    problems = []
    for kind in kinds:
        if kind is type(None):
            continue
        try:
            return _check(value, kind, where, loose, inner)
        except ValueError as problem:
            problems.append(str(problem))
    raise ValueError(problems[0])


def _check_tuple(
    value: Any, kinds: tuple[Any, ...], where: str, loose: bool, inner: list[Part]
) -> None:
    _expect(isinstance(value, tuple), where, "a list", value)
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        kinds = (kinds[0],) * len(value)
    _expect(len(value) == len(kinds), where, f"a list of {len(kinds)}", value)
    for i, (part, kind) in enumerate(zip(value, kinds, strict=True)):
        _check(part, kind, f"{where}[{i}]", loose, inner)


def _check_tensor(value: Any, where: str, loose: bool) -> None:
    _expect(isinstance(value, Tensor), where, "a tensor", value)
    if not value.numel():
        raise ValueError(f"{where} is empty")
    if value.is_floating_point() and value.dtype != torch.float32:
        raise ValueError(f"{where} has type {value.dtype}, expected torch.float32")
    if value.is_floating_point() and not loose and not bool(torch.isfinite(value).all()):
        raise ValueError(f"{where} has values that are not finite")


def _is_whole(value: Any) -> bool:
    """Whether it is a whole number of 64 bits; JSON has longer ones."""
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63


def _expect(fits: bool, where: str, wanted: Any, value: Any) -> None:
    if not fits:
        wanted = wanted if isinstance(wanted, str) else getattr(wanted, "__name__", str(wanted))
        raise ValueError(f"{where} is {str(value)[:40]!r}, expected {wanted}")
