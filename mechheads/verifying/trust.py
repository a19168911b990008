"""What a run folder may ask for. A stranger's folder is data: it is never obeyed, only repeated.

Only commands that measure are rerun, with settings of the right names and types. Embedded and
fetched models and built-in tasks need no permission. Everything else that a folder names (files,
models of a hub, a scorer to run, a device) is listed, and used only if the user says so.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from inspect import Parameter
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from mechheads.cli.commands import COMMANDS, Command
from mechheads.errors import MechheadsError
from mechheads.jobs.given import CIRCUIT, EFFECTS, files_of
from mechheads.models import locate
from mechheads.options import flag_of, read_list, read_value
from mechheads.runs.folder import Record
from mechheads.scoring.registry import METHODS
from tasks.registry import TASKS, is_file

MODELS, TASK_FLAGS = ("model", "models", "standard", "sparse"), ("task", "tasks")
FORMATS = ("retain", "forget", "family")  # tasks with options: task:option=value
# The flags that hold several names; others are one name, commas included.
LISTS = {
    "gate": ("task", "model", "family"),
    "mask": ("tasks",),
    "prefix": ("models",),
    "compare": ("tasks",),
    "leaderboard": ("models", "tasks"),
}
# Text that is never opened: looked up in a table, read as numbers or heads, or part of a prompt.
# Any other text of a setting may be a file.
WORDS = frozenset(
    "method methods metric metrics split dtype revision device comet_command heads head k matrix_k "
    "rates points pulled_rates filler word instruction conditions sweep to part senders mlps "
    "positions names operations members".split()
)


@dataclass(frozen=True)
class Allowed:
    """What the user allows a folder to use."""

    files: bool = False
    hub: bool = False
    comet_command: str | None = None
    device: str | None = None


def trusted_settings(folder: Path, record: Record, allowed: Allowed) -> dict[str, Any]:
    """The settings to rerun a folder with; an error lists what it needs that is not allowed."""
    command = COMMANDS.get(record.command)
    if command is None or not command.measures:
        raise MechheadsError(
            f"{folder} is a run of {record.command[:40]!r}, which cannot be verified. Only "
            f"{', '.join(c.name for c in COMMANDS.values() if c.measures)} can."
        )
    settings = command.in_full(_typed(folder, record, command))
    needs = list(_needs(command, settings))
    files, remote = ([what for what, kind in needs if kind == wanted] for wanted in ("file", "hub"))
    if files and not allowed.files:
        raise MechheadsError(
            f"{folder} uses {', '.join(files)}, which are not part of it. If you trust them, add "
            "--allow-files; relative paths are resolved from the working directory."
        )
    if remote and not allowed.hub:
        raise MechheadsError(
            f"{folder} uses {', '.join(remote)} from a model hub. If you trust it, add --allow-hub."
        )
    return settings | _by_hand(folder, settings, allowed)


def usable_threads(recorded: Any) -> int | None:
    """As many threads as the run had, but no more than this machine has; None: unknown."""
    if not isinstance(recorded, int) or isinstance(recorded, bool) or recorded < 1:
        return None
    return min(recorded, os.cpu_count() or 1)


def _typed(folder: Path, record: Record, command: Command) -> dict[str, Any]:
    """The recorded settings as the types that the command takes."""
    own, options = command.settings, command.options
    settings = {}
    for name, value in record.settings.items():
        if name in own:
            settings[name] = read_value(value, own[name].annotation, flag_of(name))
        elif name in options and isinstance(value, str | int | float | bool):
            settings[name] = value
        else:
            raise MechheadsError(
                f"{folder} is damaged: {command.name} has no setting {name[:40]!r} with the value "
                f"{str(value)[:40]!r}."
            )
    return settings


def _needs(command: Command, settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What the settings name outside of the package, and whether it is a file or on a hub."""
    for name in MODELS:
        for model in _names(command, settings, name):
            if model in (*locate.shipped(), *locate.FETCHABLE):
                continue
            yield f"{flag_of(name)} {model}", "file" if locate.is_path(model) else "hub"
    for name in TASK_FLAGS:
        for task in _names(command, settings, name):
            if is_file(task):
                yield f"{flag_of(name)} {task}", "file"
    for name in FORMATS:
        for text in _names(command, settings, name):
            task, _, options = text.partition(":")
            if is_file(task) or (options and task in TASKS and task not in TASKS.builtin):
                yield f"{flag_of(name)} {text}", "file"
    for name, file in files_of(settings).items():
        yield f"{flag_of(name)} {file}", "file"
    known = {*MODELS, *TASK_FLAGS, *FORMATS, CIRCUIT, EFFECTS}
    for name in _texts(command, settings) - known:
        if settings.get(name):
            yield f"{flag_of(name)} {settings[name]}", "file"


def _names(command: Command, settings: Mapping[str, Any], name: str) -> list[str]:
    """The names that a flag holds, as the command itself will read them."""
    text = settings.get(name)
    if not text:
        return []
    return read_list(text, str, flag_of(name)) if name in LISTS.get(command.name, ()) else [text]


def _texts(command: Command, settings: Mapping[str, Any]) -> set[str]:
    """The settings that hold text which may be a file, as far as is known.

    Another package's task or method may open whatever its options name.
    """
    ours = {name: p for name, p in command.settings.items() if name not in WORDS}
    used: list[tuple[bool, Mapping[str, Parameter]]] = [(True, ours)]
    for flag in TASK_FLAGS:
        for task in _names(command, settings, flag):
            if task in TASKS:
                used.append((task in TASKS.builtin, TASKS[task].options))
    if (method := str(settings.get("method"))) in METHODS:
        own = METHODS[method].options
        flags = {name: own[name] for name in METHODS[method].flags}
        used.append((method in METHODS.builtin, flags))
    return {
        name
        for builtin, options in used
        for name, p in options.items()
        if _is_text(p.annotation) and not (builtin and name in WORDS)
    }


def _is_text(kind: Any) -> bool:
    """Whether a value of this type may be any text."""
    if get_origin(kind) is Literal:
        return False
    parts = get_args(kind) if get_origin(kind) in (Union, UnionType) else ()
    return any(map(_is_text, parts)) if parts else kind not in (int, float, bool, NoneType)


def _by_hand(folder: Path, settings: Mapping[str, Any], allowed: Allowed) -> dict[str, Any]:
    """Settings that are never taken from a folder: a program to run, a device."""
    given: dict[str, Any] = {}
    if "comet_command" in settings:
        given["comet_command"] = COMMANDS["mask"].settings["comet_command"].default
        if "comet" in read_list(settings["metrics"], str, "--metrics"):
            if allowed.comet_command is None:
                raise MechheadsError(
                    f"{folder} was scored by COMET, which is a program to run. Give it yourself "
                    "with --comet-command."
                )
            given["comet_command"] = allowed.comet_command
    if "device" in settings:
        several = f"{settings['n_devices']} devices" if settings["n_devices"] > 1 else None
        recorded = settings["device_map"] or several or settings["device"]
        if recorded not in (None, "cpu") and allowed.device is None:
            raise MechheadsError(
                f"{folder} was run on the device {recorded[:40]!r}. Choose one with --device."
            )
        given |= {"device": allowed.device or settings["device"], "device_map": None}
        given |= {"n_devices": 1}
    return given
