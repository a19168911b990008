"""The cells of a sweep: a verb with settings each, from flags or from a TOML file."""

import hashlib
import inspect
import itertools
import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from mechheads.errors import MechheadsError, unknown
from mechheads.options import read_list, read_value

# What a verb calls the four axes of a grid. compare takes two models and all tasks in one cell.
AXES: dict[str, Mapping[str, str]] = {
    "discover": {"task": "task", "model": "model", "method": "method", "seed": "seed"},
    "gate": {"task": "task", "model": "model", "seed": "seed"},
    "mask": {"task": "tasks", "model": "model", "method": "method", "seed": "seed"},
    "prefix": {"task": "task", "model": "models", "seed": "seed"},
    "compare": {"method": "method", "seed": "seed"},
}
# Models first: cells that follow each other then share one that is loaded.
LISTS = {"models": "model", "tasks": "task", "methods": "method", "seeds": "seed"}
# Arguments that say what a cell is about, and come first in its name.
TASKS, MODELS = ("task", "tasks"), ("model", "models", "standard", "sparse")
LEADING = (*TASKS, *MODELS, "method", "seed")


@dataclass(frozen=True)
class Cell:
    """One run: a verb, what it is called with, and the digests of the files that it reads."""

    verb: str
    settings: tuple[tuple[str, Any], ...]
    inputs: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        """A folder name: what the cell is, and a hash of all its settings."""
        values = [str(value) for _, value in self.settings]
        words = [re.sub(r"[^\w.]+", "_", Path(value).name).strip("_.")[:24] for value in values]
        text = json.dumps([self.verb, *sorted(self.settings)], default=str)
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        return "-".join(["-".join([self.verb, *filter(None, words[:4])])[:110], digest])

    @property
    def label(self) -> str:
        """For a table."""
        return ", ".join(f"{name} {value}" for name, value in self.settings) or self.verb


def from_flags(
    verbs: Sequence[str], axes: Mapping[str, Sequence[Any]], common: Mapping[str, Any]
) -> list[Cell]:
    """Every combination of the axes for every verb, each once; `common` goes to those that have it.

    An option of a task or a method goes to the cells of that task or method. An axis that was not
    given stays at the verb's default.
    """
    for verb in verbs:
        if verb not in AXES:
            raise unknown("verb", verb, AXES)
    for key in (*common, *axes):
        if not any(_takes(verb, key) if key in axes else known(verb, key) for verb in verbs):
            flag = f"--{key.replace('_', '-')}"
            raise MechheadsError(f"unknown flag {flag}: none of {', '.join(verbs)} has it.")
    cells: list[Cell] = []
    for verb in verbs:
        own = {name: values for name, values in axes.items() if _takes(verb, name)}
        given = {name: v for key, v in common.items() if (name := known(verb, key))}
        cells += _combined(verb, own, given)
    _check_used(common, cells)
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
    tables = content.pop("grid", None)
    for key in content:
        raise MechheadsError(f"{file}: {key} stands in no [[grid]]. Write it below one.")
    if not isinstance(tables, list) or not tables:
        raise MechheadsError(
            f'{file} has no [[grid]]. Write: [[grid]], then verb = "discover", tasks = ["ioi"].'
        )
    cells: list[Cell] = []
    for i, table in enumerate(tables, start=1):
        try:
            cells += _from_table(table)
        except MechheadsError as error:
            raise MechheadsError(f"{file}, grid {i}: {error}") from None
    return list(dict.fromkeys(cells))


def parameters(verb: str) -> dict[str, inspect.Parameter]:
    """What a verb can be called with, where and how to write aside."""
    return {
        name: p
        for name, p in _signature(verb).items()
        if p.kind is not p.VAR_KEYWORD and name not in ("out", "quiet")
    }


def in_full(verb: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with the verb's defaults for what they leave out."""
    return {name: p.default for name, p in parameters(verb).items()} | dict(settings)


def options(verb: str) -> list[str]:
    """The tasks' and methods' own options, if the verb takes them."""
    if not any(p.kind is p.VAR_KEYWORD for p in _signature(verb).values()):
        return []
    return import_module(f"mechheads.{verb}").flags()


def known(verb: str, key: str) -> str | None:
    """The verb's argument or option behind a flag: --lambda is lambda_ in Python."""
    own = parameters(verb)
    named = (name for name in (key, f"{key}_") if name in own)
    return next(named, key if key in options(verb) else None)


def _from_table(table: Any) -> list[Cell]:
    verb = table.get("verb") if isinstance(table, dict) else table
    if not isinstance(verb, str) or verb not in AXES:
        raise MechheadsError(f"verb is one of {', '.join(AXES)}, got {verb!r}.")
    rest = {key: value for key, value in table.items() if key != "verb"}
    own = parameters(verb)
    # A list is an axis; gate's number of seeds is a setting of its own.
    axes = {
        name: rest.pop(name)
        for name in LISTS
        if name in rest and (isinstance(rest[name], list) or name not in own)
    }
    for name, values in axes.items():
        if not isinstance(values, list) or not values:
            raise MechheadsError(f'{name} takes a list such as ["a"].')
        if not _takes(verb, name):
            raise MechheadsError(f"{verb} has no {name}.")
    given = {}
    for key, value in rest.items():
        name = known(verb, key)
        if name is None:
            raise MechheadsError(f"{verb} has no setting {key}.")
        given[name] = value
    cells = _combined(verb, axes, given)
    _check_used(rest, cells)
    return cells


def _check_used(given: Iterable[str], cells: Sequence[Cell]) -> None:
    """An error if a setting went to no cell."""
    used = {name.rstrip("_") for cell in cells for name, _ in cell.settings}
    for key in given:
        if key.rstrip("_") not in used:
            flag = f"--{key.replace('_', '-')}"
            raise MechheadsError(f"unknown flag {flag}: no task or method of this grid has it.")


def _check_names(verb: str, settings: Mapping[str, Any]) -> None:
    """An error if a method or a task is misspelt; files may come before their cell is run."""
    from mechheads.scoring import registry as methods
    from mechheads.show import check_task

    if "method" in settings and (verb, settings["method"]) != ("mask", "probe"):
        methods.find(str(settings["method"]))
    for name in TASKS:
        for task in read_list(str(settings[name]), str, f"--{name}") if name in settings else ():
            check_task(task)


def _fits(verb: str, settings: Mapping[str, Any], option: str) -> bool:
    """Whether an option is one of the cell's method, or of all its tasks."""
    from mechheads.scoring import registry as methods
    from mechheads.show import task_has

    whole = in_full(verb, settings)
    method = methods.METHODS.get(str(whole.get("method")))
    if method is not None and option in method.flags:
        return True
    tasks = [part for name in TASKS for part in str(whole.get(name, "")).split(",") if part]
    return bool(tasks) and all(task_has(task.strip(), option) for task in tasks)


def _takes(verb: str, axis: str) -> bool:
    return verb == "compare" or LISTS[axis] in AXES[verb]


def _combined(
    verb: str, axes: Mapping[str, Sequence[Any]], common: Mapping[str, Any]
) -> list[Cell]:
    own = parameters(verb)
    fixed = _sides(axes) if verb == "compare" else {}
    used = {
        AXES[verb][single]: axes[name]
        for name, single in LISTS.items()
        if axes.get(name) and single in AXES[verb]
    }
    for name in common:
        if name in used or name in fixed:
            raise MechheadsError(f"{name} is given as an axis too. Give it once.")
    order = [*(name for name in own if name in LEADING), *own, *sorted(options(verb))]
    cells = []
    for values in itertools.product(*used.values()):
        settings = fixed | dict(zip(used, values, strict=True))
        settings |= {k: v for k, v in common.items() if k in own or _fits(verb, settings, k)}
        _check_names(verb, settings)
        typed = {
            name: read_value(
                settings[name], own[name].annotation if name in own else str, f"--{name}"
            )
            for name in sorted(settings, key=order.index)
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


def _signature(verb: str) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(getattr(import_module(f"mechheads.{verb}"), verb)).parameters
