"""Options of tasks, methods and commands: text becomes the type that the signature names."""

import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

from mechheads.errors import MechheadsError, shown, unknown

T = TypeVar("T")
LARGEST = 2**31 - 1  # seeds are multiplied, and torch takes 64 bits


def read_value(value: Any, kind: Any, name: str) -> Any:
    """`value` as the annotated type `kind` (str, int, float, bool, Literal, X | None).

    Text from a command line is parsed; a list becomes comma-separated text if text is wanted.
    """
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise unknown(f"value for {name}:", str(value)[:60], get_args(kind))
        return value
    kinds = get_args(kind) or (kind,)
    if type(None) in kinds and (value is None or value == "None"):
        return None
    words = [w for k in kinds if get_origin(k) is Literal for w in get_args(k)]
    if value in words:
        return value
    wanted = next(k for k in kinds if k is not type(None))
    if get_origin(wanted) is Literal:
        return read_value(value, wanted, name)
    types = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    try:
        if wanted is bool:
            return {"true": True, "false": False}[str(value).lower()]
        if wanted is int and isinstance(value, float | bool):
            raise ValueError(value)
        if wanted is str and isinstance(value, list | tuple):
            return ",".join(map(str, value))
        found = wanted(value)
    except (ValueError, KeyError, TypeError, OverflowError):
        takes = " or ".join([types[wanted], *words])
        raise MechheadsError(f"{name} takes {takes}, got {shown(value)}.") from None
    if isinstance(found, int) and abs(found) > LARGEST:
        raise MechheadsError(f"{name} takes a whole number up to {LARGEST:,}, got {shown(value)}.")
    return found


def read_list(text: str, kind: Any, name: str) -> list[Any]:
    """A comma-separated list as values of a type; at least one."""
    values = [read_value(part.strip(), kind, name) for part in text.split(",") if part.strip()]
    if not values:
        raise MechheadsError(f"{name} takes a list such as a,b; got nothing.")
    return values


def read_pairs(text: str, name: str) -> dict[str, str]:
    """Options joined by plus signs, each a name and a text.

    >>> read_pairs("shots=2+no-rest=true", "--retain")
    {'shots': '2', 'no_rest': 'true'}
    """
    parts = [part.partition("=") for part in text.split("+")]
    if not all(key and equals and value for key, equals, value in parts):
        raise MechheadsError(f"{name} takes options like shots=2+instruction=false, got {text!r}.")
    return {key.replace("-", "_"): value for key, _, value in parts}


def check_least(flag: str, value: int | float | None, least: int) -> None:
    """Raise an error if the value of a flag is below the least one it takes; None is fine."""
    if value is not None and not value >= least:
        raise MechheadsError(f"{flag} takes {least} or more, got {value}.")


def check_alone(
    flag: str, why: str, settings: Mapping[str, Any], defaults: Mapping[str, Any]
) -> None:
    """Raise an error if a setting that `flag` excludes is not at its default."""
    for name, default in defaults.items():
        if settings[name] != default:
            usual = f" ({flag_of(name)} {default} is the default)" if default else ""
            raise MechheadsError(
                f"{flag} and {flag_of(name)} cannot be combined: {why}. Leave out one of "
                f"them{usual}."
            )


def read_path(text: str | Path, name: str) -> Path:
    """A path with `~` expanded; an error if no file can have that name."""
    shown = ascii(str(text))[1:41]
    try:
        os.fsencode(text)
        if "\0" in str(text):
            raise ValueError("it has a NUL character")
        path = Path(text).expanduser()
        if any(len(os.fsencode(part)) > 255 for part in path.parts) or len(str(path)) > 4000:
            raise ValueError("it is too long")
    except (ValueError, RuntimeError) as error:
        raise MechheadsError(f"{name} {shown!r} is not a usable path ({error}).") from None
    return path


def read_input(text: str | Path, name: str) -> Path:
    """The path of a file to read; an error if it is a folder, or a device or pipe without end."""
    path = read_path(text, name)
    if path.exists() and not path.is_file():
        raise MechheadsError(f"{path} is not a regular file, so it cannot be read as {name}.")
    return path


def choices(kind: Any) -> tuple[str, ...]:
    """The values that an option with this annotation may take, if they are listed in it."""
    return get_args(kind) if get_origin(kind) is Literal else ()


def flag_of(name: str) -> str:
    """The flag of an argument: `prepend_bos` is --prepend-bos, `lambda_` is --lambda."""
    return f"--{name.rstrip('_').replace('_', '-')}"


def pick(kind: type[T], settings: Mapping[str, Any]) -> T:
    """A dataclass built from the settings that are its fields."""
    return kind(**{f.name: settings[f.name] for f in fields(kind) if f.name in settings})  # pyright: ignore[reportArgumentType]
