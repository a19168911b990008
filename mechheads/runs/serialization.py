"""Saves results without loss: tensors as safetensors, the rest as JSON in the same file's header.

A result is a frozen dataclass of tensors, tables of tensors, plain values and other results.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from mechheads.errors import MechheadsError

from .files import write_bytes
from .schema import UNFIT, check_result

SCHEMA = 1
R = TypeVar("R")


def save_result(result: Any, file: Path) -> Path:
    """Write the result atomically; equal results give equal bytes."""
    tensors: dict[str, Tensor] = {}
    plain = _pack(result, "", tensors)
    header = {"schema": SCHEMA, "kind": type(result).__name__, "plain": plain}
    contiguous = {name: tensor.clone().contiguous() for name, tensor in sorted(tensors.items())}
    return write_bytes(file, save(contiguous, {"result": json.dumps(header)}))


def load_result(kind: type[R], file: Path) -> R:
    """Read what `save_result` wrote; an error says what is wrong with the file."""
    try:
        with safe_open(file, "pt") as opened:
            header = json.loads(opened.metadata()["result"])
            json.dumps(header, ensure_ascii=False).encode()  # half a character cannot be written
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        if header["kind"] != kind.__name__:
            raise ValueError(f"it holds {str(header['kind'])[:40]}")
        if header["schema"] != SCHEMA:
            raise ValueError(f"schema {str(header['schema'])[:40]}")
        result = _unpack(kind, header["plain"], "", tensors)
        check_result(result)
        return result
    except (OSError, SafetensorError, *UNFIT) as error:
        raise MechheadsError(
            f"{file} does not hold a readable {kind.__name__} ({error!r})."
        ) from None


def _pack(result: Any, prefix: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for field in dataclasses.fields(result):
        value, name = getattr(result, field.name), f"{prefix}{field.name}"
        if isinstance(value, Tensor):
            tensors[name] = value
        elif dataclasses.is_dataclass(value):
            plain[field.name] = _pack(value, f"{name}.", tensors)
        elif isinstance(value, tuple) and value and dataclasses.is_dataclass(value[0]):
            plain[field.name] = [
                _pack(inner, f"{name}.{i}.", tensors) for i, inner in enumerate(value)
            ]
        elif isinstance(value, Mapping) and any(isinstance(v, Tensor) for v in value.values()):
            tensors |= {f"{name}/{key}": v for key, v in value.items()}
            plain[field.name] = list(value)
        elif isinstance(value, Mapping) and any(map(dataclasses.is_dataclass, value.values())):
            plain[field.name] = {
                key: _pack(inner, f"{name}/{key}.", tensors) for key, inner in value.items()
            }
        else:
            plain[field.name] = value
    return plain


def _unpack(kind: Any, plain: Mapping[str, Any], prefix: str, tensors: Mapping[str, Tensor]) -> Any:
    given: dict[str, Any] = {}
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        name = f"{prefix}{field.name}"
        inner = [t for t in (hints[field.name], *get_args(hints[field.name])) if _is_result(t)]
        if name in tensors:
            given[field.name] = tensors[name]
        elif field.name not in plain and field.default is not dataclasses.MISSING:
            continue  # an older version, without this field, wrote the file
        elif inner and isinstance(plain[field.name], list):
            given[field.name] = tuple(
                _unpack(inner[0], part, f"{name}.{i}.", tensors)
                for i, part in enumerate(plain[field.name])
            )
        elif inner and get_origin(hints[field.name]) is Mapping:
            given[field.name] = {
                key: _unpack(inner[0], part, f"{name}/{key}.", tensors)
                for key, part in plain[field.name].items()
            }
        elif inner and plain[field.name] is not None:
            given[field.name] = _unpack(inner[0], plain[field.name], f"{name}.", tensors)
        elif any(key.startswith(f"{name}/") for key in tensors):
            given[field.name] = {key: tensors[f"{name}/{key}"] for key in plain[field.name]}
        else:
            given[field.name] = _frozen(plain[field.name])
    return kind(**given)


def _is_result(kind: Any) -> bool:
    return isinstance(kind, type) and dataclasses.is_dataclass(kind)


def _frozen(value: Any) -> Any:
    """Turn JSON lists back into tuples."""
    if isinstance(value, list):
        return tuple(map(_frozen, value))
    if isinstance(value, dict):
        return {key: _frozen(inner) for key, inner in value.items()}
    return value
