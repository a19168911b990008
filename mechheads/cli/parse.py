"""Reads a command line: a command's flags are its function's arguments.

Fire parses the flags but does not call the command: it notices an unknown flag only after the
call, so it calls a stand-in that records the arguments. Text is converted to the annotated type.
"""

import contextlib
import inspect
import io
from collections.abc import Mapping, Sequence
from typing import Any

from mechheads.errors import MechheadsError, suggest
from mechheads.options import flag_of, read_value

from .commands import Command


def arguments(command: Command, argv: Sequence[str]) -> dict[str, Any]:
    """The arguments by name; an error names the flag that is unknown or has a bad value."""
    from fire import Fire
    from fire.core import FireExit
    from fire.decorators import SetParseFn

    named, options = command.flags, command.options
    argv = [_spelled(word, named) for word in argv]
    _check_flags(argv, named, options, command)
    argv = _with_values(argv, command.switches - set(named))
    recorded: dict[str, Any] = {}

    @SetParseFn(str)
    def record(*args: Any, **kwargs: Any) -> None:
        recorded.update(zip(named, args, strict=False))
        recorded.update(kwargs)

    record.__signature__ = inspect.Signature(  # pyright: ignore[reportFunctionMemberAccess]
        [
            *named.values(),
            *([inspect.Parameter("options", inspect.Parameter.VAR_KEYWORD)] if options else []),
        ]
    )
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            Fire(record, command=list(argv))
    except FireExit as exit:
        left = exit.trace.elements[-1].args or [p.name.upper() for p in named.values()][:1]
        what = f"unexpected argument {left[0]!r}" if left[0] in argv else f"{left[0]} is missing"
        raise MechheadsError(f"{what}. {_see(command)}") from None
    for name, parameter in named.items():
        if name in recorded:
            recorded[name] = read_value(recorded[name], parameter.annotation, flag_of(name))
    return recorded


def _spelled(word: str, named: Mapping[str, inspect.Parameter]) -> str:
    """Turn --lambda into --lambda_ if that is the argument's name."""
    flag, equals, value = word.partition("=")
    name = f"{flag[2:].replace('-', '_')}_"
    return f"--{name}{equals}{value}" if flag.startswith("--") and name in named else word


def _with_values(argv: Sequence[str], switches: set[str]) -> list[str]:
    """Add =true to switches of other commands, which Fire does not know to be switches."""
    following = [*argv[1:], "--"]
    return [
        f"{word}=true"
        if word[2:].replace("-", "_") in switches and word[:2] == after[:2] == "--"
        else word
        for word, after in zip(argv, following, strict=False)
    ]


def _check_flags(
    argv: Sequence[str],
    named: Mapping[str, inspect.Parameter],
    options: Sequence[str],
    command: Command,
) -> None:
    """Reject unknown flags, flags without a value, and a lone dash, which Fire would interpret."""
    switches = command.switches
    for i, word in enumerate(argv):
        if not _is_text(word):
            raise MechheadsError(f"argument {i + 1} is not valid UTF-8 text. {_see(command)}")
        if word == "-":
            raise MechheadsError(f"'-' is not a valid argument. {_see(command)}")
        if not word.startswith("--") or word == "--":
            continue
        flag, has_value = word[2:].partition("=")[0], "=" in word
        name = flag.replace("-", "_")
        if name not in (*named, *options):
            flags = [flag_of(n) for n in (*named, *options)]
            raise MechheadsError(
                f"unknown flag --{flag}.{suggest('--' + flag, flags)} {_see(command)}"
            )
        switch = name in switches or f"{name}_" in switches
        if not has_value and not switch and (i + 1 == len(argv) or argv[i + 1].startswith("--")):
            raise MechheadsError(f"--{flag} needs a value. {_see(command)}")


def _is_text(word: str) -> bool:
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def _see(command: Command) -> str:
    return f"See python -m mechheads.{command.name} --help."
