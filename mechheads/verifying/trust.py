"""What a run folder may ask for. A stranger's folder is data: it is never obeyed, only repeated.

Only commands that measure are rerun, with settings of the right names and types. Embedded and
fetched models and built-in tasks need no permission. Everything else that a folder names (files,
models of a hub, a scorer to run, a device) is listed, and used only if the user says so.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mechheads.cli.commands import COMMANDS, Command
from mechheads.errors import MechheadsError
from mechheads.models import locate
from mechheads.options import flag_of, read_list, read_value
from mechheads.runs.folder import Record
from tasks.registry import is_file

MODELS, TASKS = ("model", "models", "standard", "sparse"), ("task", "tasks")
FORMATS = ("retain", "forget", "family")  # tasks with options: task:option=value


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
    if command is None or not command.swept:
        raise MechheadsError(
            f"{folder} is a run of {record.command[:40]!r}, which cannot be verified. Only "
            f"{', '.join(c.name for c in COMMANDS.values() if c.swept)} can."
        )
    settings = command.in_full(_typed(folder, record, command))
    files = [what for what, kind in _needs(settings) if kind == "file"]
    remote = [what for what, kind in _needs(settings) if kind == "hub"]
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


def _needs(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What the settings name outside of the package, and whether it is a file or on a hub."""
    for name in MODELS:
        for model in _listed(settings, name):
            if model in (*locate.embedded(), *locate.FETCHABLE):
                continue
            yield f"{flag_of(name)} {model}", "file" if locate.is_path(model) else "hub"
    for name in TASKS:
        for task in _listed(settings, name):
            if is_file(task):
                yield f"{flag_of(name)} {task}", "file"
    for name in FORMATS:
        for text in _listed(settings, name):
            if is_file(text.partition(":")[0]):
                yield f"{flag_of(name)} {text}", "file"


def _listed(settings: Mapping[str, Any], name: str) -> list[str]:
    return read_list(settings[name], str, flag_of(name)) if settings.get(name) else []


def _by_hand(folder: Path, settings: Mapping[str, Any], allowed: Allowed) -> dict[str, Any]:
    """Settings that are never taken from a folder: a program to run, a device."""
    given: dict[str, Any] = {}
    if "comet_command" in settings:
        given["comet_command"] = COMMANDS["mask"].settings["comet_command"].default
        if "comet" in _listed(settings, "metrics"):
            if allowed.comet_command is None:
                raise MechheadsError(
                    f"{folder} was scored by COMET, which is a program to run. Give it yourself "
                    "with --comet-command."
                )
            given["comet_command"] = allowed.comet_command
    if "device" in settings:
        recorded = settings["device"]
        if recorded not in (None, "cpu") and allowed.device is None:
            raise MechheadsError(
                f"{folder} was run on the device {recorded[:40]!r}. Choose one with --device."
            )
        given["device"] = allowed.device or recorded
    return given
