"""The command line: `mechheads discover --task ioi`, or `python -m mechheads.discover --task ioi`.

An error that a user can fix is one line on stderr, with exit code 2.
"""

import contextlib
import errno
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from mechheads.errors import MechheadsError

from .commands import COMMANDS, Command, find
from .help import help_text, overview
from .parse import arguments


class Terminated(KeyboardInterrupt):
    """SIGTERM, which cluster schedulers send: handled like Ctrl-C."""


def main() -> NoReturn:
    """The console script `mechheads`."""
    argv = sys.argv[1:]
    if not argv or argv[0] in ("--help", "-h", "help"):
        print(overview())
        sys.exit(0)
    if argv[0] == "--version":
        from mechheads import __version__

        print(f"mechheads {__version__}")
        sys.exit(0)
    try:
        command = find(argv[0].replace("-", "_"))
    except MechheadsError as error:
        print(f"mechheads: {error}", file=sys.stderr)
        sys.exit(2)
    _execute(command, argv[1:])


def run(function: Callable[..., Any]) -> NoReturn:
    """Entry point of `python -m mechheads.COMMAND`: call the command with its flags, and exit."""
    _execute(COMMANDS[function.__name__], sys.argv[1:])


def _execute(command: Command, argv: Sequence[str]) -> NoReturn:
    signal.signal(signal.SIGTERM, _terminate)
    leave_working_directory()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # an ASCII terminal shows ? for ±
    try:
        with unless_gone():
            if {"--help", "-h"} & set(argv):
                print(help_text(command))
            else:
                command.call(arguments(command, argv))
            sys.stdout.flush()
    except MechheadsError as error:
        sys.exit(_fail(command, str(error), 2))
    except Terminated:
        sys.exit(_fail(command, "terminated.", 143))
    except KeyboardInterrupt:
        sys.exit(_fail(command, "interrupted.", 130))
    sys.exit(0)


def leave_working_directory() -> None:
    """Do not import an unrelated tasks.py or circuits.py.

    `python -m` puts the working directory first on the search path. Remove it unless it holds our
    packages.
    """
    home = Path(__file__).resolve().parents[2]
    here = Path.cwd().resolve()
    if here != home:
        sys.path[:] = [place for place in sys.path if Path(place or ".").resolve() != here]


@contextlib.contextmanager
def unless_gone() -> Iterator[None]:
    """Exit quietly if the reader of stdout (head, less) is gone."""
    try:
        yield
    except BrokenPipeError:
        _drop_output()
        sys.exit(0)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        _drop_output()
        raise MechheadsError("cannot write to stdout (no space left on device).") from None


def _drop_output() -> None:
    """Nothing more can be printed, also not when the process ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _terminate(*_: Any) -> NoReturn:
    raise Terminated


def _fail(command: Command, text: str, code: int) -> int:
    print(f"mechheads.{command.name}: {' '.join(text.split())}", file=sys.stderr)
    return code
