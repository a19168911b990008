"""The cells of a sweep: a verb with settings each, from flags or from a TOML file."""

import hashlib
import inspect
import itertools
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from ..errors import MechheadsError, unknown
from ..prompts import read

# What a verb calls the four axes of a grid. compare takes the first two models and all tasks.
AXES: Mapping[str, Mapping[str, str]] = {
    "discover": {"task": "task", "model": "model", "method": "method", "seed": "seed"},
    "gate": {"task": "task", "model": "model", "seed": "seed"},
    "mask": {"task": "tasks", "model": "model", "method": "method", "seed": "seed"},
    "prefix": {"task": "task", "model": "models", "seed": "seed"},
    "compare": {"method": "method", "seed": "seed"},
}
LISTS = {"tasks": "task", "models": "model", "methods": "method", "seeds": "seed"}


@dataclass(frozen=True)
class Cell:
    """One run: a verb and what it is called with."""

    verb: str
    settings: tuple[tuple[str, Any], ...]

    @property
    def name(self) -> str:
        """A folder name: what the cell is, and a hash of all its settings."""
        values = [str(value) for _, value in self.settings]
        words = [re.sub(r"[^\w.]+", "_", Path(value).name).strip("_.")[:24] for value in values]
        text = json.dumps([self.verb, *self.settings], default=str)
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        return "-".join([self.verb, *filter(None, words[:4]), digest])[:120]

    @property
    def label(self) -> str:
        """For a table."""
        return ", ".join(f"{name} {value}" for name, value in self.settings)


def from_flags(
    verbs: Sequence[str], axes: Mapping[str, Sequence[Any]], common: Mapping[str, Any]
) -> list[Cell]:
    """Every combination of the axes for every verb, each once; `common` goes to those that have it.

    An axis that was not given stays at the verb's default.
    """
    cells: list[Cell] = []
    known = set()
    for verb in verbs:
        if verb not in AXES:
            raise unknown("verb", verb, AXES)
        own = set(parameters(verb))
        known |= own
        given = {key: value for key, value in common.items() if key in own}
        cells += _combined(verb, axes, given)
    for key in common:
        if key not in known:
            raise MechheadsError(f"unknown flag --{key}: none of {', '.join(verbs)} has it.")
    return list(dict.fromkeys(cells))


def from_file(path: str) -> list[Cell]:
    """The cells of a TOML file: a [[grid]] table each with verb, tasks, models, methods, seeds."""
    file = Path(path).expanduser()
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise MechheadsError(f"cannot read {file} ({error}). Give a TOML file.") from None
    except tomllib.TOMLDecodeError as error:
        raise MechheadsError(f"{file} is no TOML ({error}).") from None
    tables = content.get("grid")
    if not isinstance(tables, list) or not tables:
        raise MechheadsError(
            f'{file} has no [[grid]]. Write: [[grid]], then verb = "discover", tasks = ["ioi"].'
        )
    cells: list[Cell] = []
    for i, table in enumerate(tables, start=1):
        if not isinstance(table, dict) or table.get("verb") not in AXES:
            raise MechheadsError(
                f"{file}, grid {i}: verb is one of {', '.join(AXES)}, got {table.get('verb')!r}."
            )
        rest = {key: value for key, value in table.items() if key != "verb"}
        own = parameters(table["verb"])
        # A list is an axis; gate's number of seeds is a setting of its own.
        axes = {
            name: rest.pop(name)
            for name in LISTS
            if name in rest and (isinstance(rest[name], list) or name not in own)
        }
        for name, values in axes.items():
            if not isinstance(values, list) or not values:
                raise MechheadsError(f'{file}, grid {i}: {name} takes a list such as ["a"].')
        for key in rest:
            if key not in own:
                raise MechheadsError(f"{file}, grid {i}: {table['verb']} has no setting {key}.")
        cells += _combined(table["verb"], axes, rest)
    return list(dict.fromkeys(cells))


def parameters(verb: str) -> Mapping[str, inspect.Parameter]:
    """What a verb can be called with, where and how to write aside."""
    function = getattr(import_module(f"mechheads.{verb}"), verb)
    named = inspect.signature(function).parameters
    return {
        name: p
        for name, p in named.items()
        if p.kind is not p.VAR_KEYWORD and name not in ("out", "quiet")
    }


def _combined(
    verb: str, axes: Mapping[str, Sequence[Any]], common: Mapping[str, Any]
) -> list[Cell]:
    own = parameters(verb)
    fixed: dict[str, Any] = {}
    if verb == "compare":
        fixed = _sides(axes)
    used = {
        AXES[verb][LISTS[name]]: values
        for name, values in axes.items()
        if values and LISTS[name] in AXES[verb]
    }
    cells = []
    for values in itertools.product(*used.values()):
        settings = fixed | dict(zip(used, values, strict=True)) | dict(common)
        typed = {
            name: read(value, own[name].annotation, f"--{name}") for name, value in settings.items()
        }
        cells.append(Cell(verb, tuple(typed.items())))
    return cells


def _sides(axes: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    models = list(axes.get("models") or ())
    if models and len(models) != 2:
        raise MechheadsError(f"compare takes two --models, got {len(models)}.")
    sides = dict(zip(("standard", "sparse"), models, strict=False))
    tasks = axes.get("tasks") or ()
    return sides | ({"tasks": ",".join(map(str, tasks))} if tasks else {})
