"""The command line: `mechheads discover --task ioi`, or `python -m mechheads.discover --task ioi`.

An error that a user can fix is one line on stderr, with exit code 2.
"""

import contextlib
import errno
import gc
import io
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from tqdm import tqdm

from mechheads import progress
from mechheads.errors import MechheadsError, MechheadsWarning, printable
from mechheads.packages import leave_working_directory

from .commands import COMMANDS, PROGRESS, Command, find
from .help import help_text, overview
from .parse import arguments


class Terminated(KeyboardInterrupt):
    """SIGTERM, which cluster schedulers send: handled like Ctrl-C."""


def main() -> NoReturn:
    """The console script `mechheads`."""
    open_streams()
    argv = sys.argv[1:]
    if not argv or argv[0] in ("--help", "-h", "help"):
        _run("mechheads", lambda: print(overview()))
    if argv[0] == "--version":
        from mechheads import __version__

        _run("mechheads", lambda: print(f"mechheads {__version__}"))
    try:
        command = find(argv[0].replace("-", "_"))
    except MechheadsError as error:
        sys.exit(_fail("mechheads", str(error), 2))
    _execute(command, argv[1:])


def run(function: Callable[..., Any]) -> NoReturn:
    """Entry point of `python -m mechheads.COMMAND`: call the command with its flags, and exit."""
    open_streams()
    _execute(COMMANDS[function.__name__], sys.argv[1:])


def _execute(command: Command, argv: Sequence[str]) -> NoReturn:
    signal.signal(signal.SIGTERM, _terminate)

    def work() -> None:
        leave_working_directory()
        if {"--help", "-h"} & set(argv):
            print(help_text(command))
            return
        gc.freeze()  # and whatever is imported: it lives as long as the process
        spin_less()
        given = arguments(command, argv)
        forced = given.pop(PROGRESS.name, False)
        if forced and given.get("quiet"):
            raise MechheadsError("--progress and --quiet cannot be combined. Use one.")
        with progress.forced(forced), warnings_in_a_line(command, given.get("quiet")):
            command.call(given)

    _run(f"mechheads.{command.name}", work)


def _run(name: str, work: Callable[[], None]) -> NoReturn:
    """Work, and exit: with 2 and one line if the user can help, with no traceback for signals."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # an ASCII terminal shows ? for ±
    try:
        with unless_gone():
            work()
            sys.stdout.flush()
    except MechheadsError as error:
        sys.exit(_fail(name, str(error), 2))
    except Terminated:
        sys.exit(_fail(name, "terminated.", 143))
    except KeyboardInterrupt:
        sys.exit(_fail(name, "interrupted.", 130))
    sys.exit(0)


def spin_less() -> None:
    """Let torch's threads wait 0.1 ms for the next operation, not 5, unless the user has set that.

    They wait by counting as fast as they can. On a busy machine that takes most of the CPU time of
    small models. libgomp reads this when torch is imported; numbers do not depend on it.
    """
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & set(os.environ):
        os.environ["GOMP_SPINCOUNT"] = "10000"


def open_streams() -> None:
    """Open what the caller has closed (>&-): else the next file would get its number."""
    for fd, mode in enumerate(("r", "w", "w")):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number, which is this one
            name = ("stdin", "stdout", "stderr")[fd]
            setattr(sys, name, os.fdopen(fd, mode, encoding="utf-8", closefd=False))


@contextlib.contextmanager
def warnings_in_a_line(command: Command, quiet: bool | None) -> Iterator[None]:
    """Print our warnings as errors are printed, also in a log; --quiet leaves them out."""
    with warnings.catch_warnings():
        show: Any = warnings.showwarning

        def print_line(message: Any, category: type[Warning], *where: Any) -> None:
            if not issubclass(category, MechheadsWarning):
                show(message, category, *where)
            elif not quiet:
                tqdm.write(f"mechheads.{command.name}: {printable(str(message))}", file=sys.stderr)

        warnings.showwarning = print_line
        yield


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
    """Print nothing more, not even when the process exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _terminate(*_: Any) -> NoReturn:
    raise Terminated


def _fail(name: str, text: str, code: int) -> int:
    try:
        print(f"{name}: {printable(text)}", file=sys.stderr, flush=True)
    except OSError:  # the disk behind stderr is full: only the code can tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    return code
