"""The help text of a command, from its signature and docstring."""

import inspect
import re
import shutil
import textwrap
from dataclasses import fields, is_dataclass
from importlib.metadata import entry_points
from typing import Any

from mechheads.options import choices, flag_of

from .commands import COMMANDS, PROGRESS, Command

ABOUT_PROGRESS = "print notices and every stage to a log too; default: a line every 30 seconds"


def overview() -> str:
    """What `mechheads --help` prints: all commands."""
    lines = [
        "Usage: mechheads COMMAND [flags]",
        "",
        "Which attention heads do the job?",
        "",
        *(f"  {command.name:<12}{command.summary}" for command in COMMANDS.values()),
        "",
        "mechheads COMMAND --help lists its flags. python -m mechheads.COMMAND works too.",
    ]
    return "\n".join(lines)


def help_text(command: Command) -> str:
    """Usage, what the command does, and every flag with its default."""
    from fire import docstrings

    document = docstrings.parse(inspect.getdoc(command.function) or "")
    about = _arguments(command)
    usage, rows = [f"python -m mechheads.{command.name}"], []
    for name, p in command.flags.items():
        if p.default is p.empty:
            usage.append(name.upper())
            rows.append((name.upper(), about.get(name, "")))
            continue
        value = "" if p.annotation is bool else f" {name.upper().rstrip('_')}"
        shown = "" if p.default in (None, False, "") else f" [{p.default}]"
        rows.append((f"{flag_of(name)}{value}", about.get(name, "") + shown))
    width = max((len(flag) for flag, _ in rows), default=0) + 2
    lines = [f"Usage: {' '.join(usage)} [flags]", "", document.summary or ""]
    if document.description:
        lines += ["", document.description]
    columns = max(60, min(shutil.get_terminal_size().columns, 110))

    def fill(line: str, indent: int) -> str:
        return textwrap.fill(line, columns, subsequent_indent=" " * indent, break_on_hyphens=False)

    lines += ["", *(fill(f"  {flag:<{width}}{text}", width + 2) for flag, text in rows), ""]
    for line in notes(command):
        columned = re.match(r" *\S+ {2,}", line)
        lines.append(fill(line, columned.end() if columned else len(line) - len(line.lstrip()) + 4))
    return "\n".join(lines).rstrip()


def notes(command: Command) -> list[str]:
    """The methods and tasks that the command takes, with their flags, and models to fetch."""
    lines = []
    if "models" in command.takes:
        lines += _models()
    if "methods" in command.takes:
        lines += [*_methods(), "", *_metrics()]
    if "tasks" in command.takes:
        lines += _tasks()
    return lines


def _arguments(command: Command) -> dict[str, str]:
    """The description of every argument; a group of options documents its members."""
    from fire import docstrings

    about = {PROGRESS.name: ABOUT_PROGRESS}
    documents: list[Any] = [command.function]
    for parameter in inspect.signature(command.function).parameters.values():
        if is_dataclass(parameter.annotation) and fields(parameter.annotation):
            documents.append(parameter.annotation)
    for documented in documents:
        found = docstrings.parse(inspect.getdoc(documented) or "")
        about |= {a.name: " ".join((a.description or "").split()) for a in found.args or []}
    return about


def _models() -> list[str]:
    from mechheads.models.fetchable import FETCHABLE

    return ["Models:", *(f"  {name:<20}{what.summary}" for name, what in FETCHABLE.items())]


def _methods() -> list[str]:
    from mechheads.scoring.registry import METHODS

    lines = ["Methods and their flags:"]
    for method in METHODS.values():
        flags = "".join(f" {flag_of(flag)}" for flag in method.flags)
        lines.append(f"  {method.name:<18}{method.summary}{flags and ';'}{flags}")
    return lines


def _metrics() -> list[str]:
    """Metrics of other packages, by name only: ours are in the flag's text, and need torch."""
    names = sorted(point.name for point in entry_points(group="mechheads.metrics"))
    return [f"Metrics of installed packages: {', '.join(names)}", ""] if names else []


def _tasks() -> list[str]:
    from tasks import TASKS
    from tasks.known import KNOWN

    lines = ["Tasks and their flags:"]
    for task in TASKS.values():
        lines.append(f"  {task.name:<18}{task.summary}")
        for option in task.options.values():
            listed = ", ".join(choices(option.annotation))
            default = "" if option.default is None else f" [{option.default}]"
            lines.append(f"  {'':<18}{flag_of(option.name)}{default}{': ' * bool(listed)}{listed}")
    return [*lines, f"Tasks of the models whose heads are known: {', '.join(KNOWN)}"]
