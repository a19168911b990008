"""The cells of a sweep, each a command with settings, from flags or from a TOML file."""

import hashlib
import itertools
import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mechheads.cli.commands import COMMANDS
from mechheads.errors import MechheadsError, unknown
from mechheads.options import flag_of, read_input, read_list, read_value
from mechheads.scoring import registry as methods

# Each command's names for the axes of a grid. compare takes two models and all tasks in one cell.
AXES: dict[str, Mapping[str, str]] = {
    "discover": {"task": "task", "model": "model", "method": "method", "seed": "seed"},
    "gate": {"task": "task", "model": "model", "seed": "seed"},
    "mask": {"task": "tasks", "model": "model", "method": "method", "seed": "seed"},
    "prefix": {"task": "task", "model": "models", "seed": "seed"},
    "compare": {"method": "method", "seed": "seed"},
}
# Models first, so that consecutive cells share a loaded model.
LISTS = {"models": "model", "tasks": "task", "methods": "method", "seeds": "seed"}
# Arguments that identify a cell and come first in its name.
TASKS, MODELS = ("task", "tasks"), ("model", "models", "standard", "sparse")
LEADING = (*TASKS, *MODELS, "method", "seed")


@dataclass(frozen=True)
class Cell:
    """One run: a command, its settings, and the digests of the files it reads."""

    command: str
    settings: tuple[tuple[str, Any], ...]
    inputs: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        """A folder name: a description of the cell, and a hash of all its settings."""
        values = [str(value) for _, value in self.settings]
        words = [re.sub(r"[^\w.]+", "_", Path(value).name).strip("_.")[:24] for value in values]
        text = json.dumps([self.command, *sorted(self.settings)], default=str)
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        return "-".join(["-".join([self.command, *filter(None, words[:4])])[:110], digest])

    @property
    def label(self) -> str:
        """The cell's label in a table."""
        return ", ".join(f"{name} {value}" for name, value in self.settings) or self.command


def from_flags(
    commands: Sequence[str], axes: Mapping[str, Sequence[Any]], common: Mapping[str, Any]
) -> list[Cell]:
    """Every combination of the axes for every command, without duplicates.

    `common` settings go to every command that has them; an option of a task or a method goes to the
    cells of that task or method. An axis that was not given stays at the command's default.
    """
    for command in commands:
        if command not in AXES:
            raise unknown("command", command, AXES)
    for key in (*common, *axes):
        if not any(
            _takes(command, key) if key in axes else known(command, key) for command in commands
        ):
            raise MechheadsError(
                f"unknown flag {flag_of(key)}: none of {', '.join(commands)} has it."
            )
    cells: list[Cell] = []
    for command in commands:
        own = {name: values for name, values in axes.items() if _takes(command, name)}
        given = {name: v for key, v in common.items() if (name := known(command, key))}
        cells += _combined(command, own, given)
    _check_used(common, cells)
    return list(dict.fromkeys(cells))


def from_file(path: str) -> list[Cell]:
    """The cells of a TOML file: [[grid]] tables with command, tasks, models, methods, seeds."""
    file = read_input(path, "--config")
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise MechheadsError(f"cannot read {file} ({error}). Give a TOML file.") from None
    except (ValueError, RecursionError) as error:
        raise MechheadsError(f"{file} is not valid TOML ({error}).") from None
    tables = content.pop("grid", None)
    for key in content:
        raise MechheadsError(f"{file}: {key} is not inside a [[grid]]. Put it under one.")
    if not isinstance(tables, list) or not tables:
        raise MechheadsError(
            f'{file} has no [[grid]]. Write: [[grid]], then command = "discover", tasks = ["ioi"].'
        )
    cells: list[Cell] = []
    for i, table in enumerate(tables, start=1):
        try:
            cells += _from_table(table)
        except MechheadsError as error:
            raise MechheadsError(f"{file}, grid {i}: {error}") from None
    return list(dict.fromkeys(cells))


def known(command: str, key: str) -> str | None:
    """The command's argument or option behind a flag: --lambda is lambda_ in Python."""
    own = COMMANDS[command].settings
    named = (name for name in (key, f"{key}_") if name in own)
    return next(named, key if key in COMMANDS[command].options else None)


def _from_table(table: Any) -> list[Cell]:
    command = table.get("command") if isinstance(table, dict) else table
    if not isinstance(command, str) or command not in AXES:
        raise MechheadsError(f"command must be one of {', '.join(AXES)}; got {command!r}.")
    rest = {key: value for key, value in table.items() if key != "command"}
    own = COMMANDS[command].settings
    # A list is an axis; a number for seeds is gate's own setting.
    axes = {
        name: rest.pop(name)
        for name in LISTS
        if name in rest and (isinstance(rest[name], list) or name not in own)
    }
    for name, values in axes.items():
        if not isinstance(values, list) or not values:
            raise MechheadsError(f'{name} takes a list, for example ["a"]; got {values!r}.')
        if not _takes(command, name):
            raise MechheadsError(f"{command} has no {name}.")
    given = {}
    for key, value in rest.items():
        name = known(command, key)
        if name is None:
            raise MechheadsError(f"{command} has no setting {key}.")
        given[name] = value
    cells = _combined(command, axes, given)
    _check_used(rest, cells)
    return cells


def _check_used(given: Iterable[str], cells: Sequence[Cell]) -> None:
    """Raise an error if a setting applies to no cell."""
    used = {name.rstrip("_") for cell in cells for name, _ in cell.settings}
    for key in given:
        if key.rstrip("_") not in used:
            raise MechheadsError(
                f"unknown flag {flag_of(key)}: no task or method of this grid has it."
            )


def _check_names(command: str, settings: Mapping[str, Any]) -> None:
    """Raise an error for an unknown method or task; task files may be created later."""
    # Not at the top: a Ray worker imports this module before it can leave its working directory.
    from tasks.registry import check_name

    if "method" in settings and (command, settings["method"]) != ("mask", "probe"):
        methods.find(str(settings["method"]))
    for name in TASKS:
        for task in read_list(str(settings[name]), str, f"--{name}") if name in settings else ():
            check_name(task)


def _fits(command: str, settings: Mapping[str, Any], option: str) -> bool:
    """Whether the cell's method, or each of its tasks, has the option."""
    from tasks.registry import has_option

    whole = COMMANDS[command].in_full(settings)
    method = methods.METHODS.get(str(whole.get("method")).partition(":")[0])
    if method is not None and option in method.flags:
        return True
    named = [part for name in TASKS for part in str(whole.get(name, "")).split(",") if part]
    return bool(named) and all(has_option(task.strip(), option) for task in named)


def _takes(command: str, axis: str) -> bool:
    return command == "compare" or LISTS[axis] in AXES[command]


def _combined(
    command: str, axes: Mapping[str, Sequence[Any]], common: Mapping[str, Any]
) -> list[Cell]:
    own = COMMANDS[command].settings
    fixed = _sides(axes) if command == "compare" else {}
    used = {
        AXES[command][single]: axes[name]
        for name, single in LISTS.items()
        if axes.get(name) and single in AXES[command]
    }
    for name in common:
        if name in used or name in fixed:
            raise MechheadsError(f"{name} is also given as an axis. Give it only once.")
    order = [*(name for name in own if name in LEADING), *own, *sorted(COMMANDS[command].options)]
    cells = []
    for values in itertools.product(*used.values()):
        settings = fixed | dict(zip(used, values, strict=True))
        settings |= {k: v for k, v in common.items() if k in own or _fits(command, settings, k)}
        _check_names(command, settings)
        typed = {
            name: read_value(
                settings[name], own[name].annotation if name in own else str, f"--{name}"
            )
            for name in sorted(settings, key=order.index)
        }
        cells.append(Cell(command, tuple(typed.items())))
    return cells


def _sides(axes: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    models = list(axes.get("models") or ())
    if models and len(models) != 2:
        raise MechheadsError(f"compare takes two --models, got {len(models)}.")
    sides = dict(zip(("standard", "sparse"), models, strict=False))
    listed = axes.get("tasks") or ()
    return sides | ({"tasks": ",".join(map(str, listed))} if listed else {})
