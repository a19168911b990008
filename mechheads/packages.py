"""Imports: our other top-level packages, what may shadow them, and a pause of garbage collection.

`tasks` and `circuits` are common names: a file tasks.py in a script's folder shadows our package.
"""

import contextlib
import gc
import sys
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from mechheads.errors import MechheadsError, MechheadsWarning

OURS = ("tasks", "circuits")
HOME = Path(__file__).resolve().parents[1]


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Pause garbage collection: importing torch creates a million objects but no garbage.

    If something was imported, all objects then count as old, so that the collections of young ones
    need not visit it. In a process that has frozen objects, as our commands have, it is frozen too.
    """
    enabled, frozen, modules = gc.isenabled(), gc.get_freeze_count(), len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            if len(sys.modules) > modules:
                gc.freeze()
                if not frozen:
                    gc.unfreeze()  # into the oldest generation
            gc.enable()


def warn_if_hidden() -> None:
    """Warn if the script has imported a `tasks` or `circuits` that is not ours."""
    for name in OURS:
        file = getattr(sys.modules.get(name), "__file__", None)
        if file and not _is_ours(file):
            warnings.warn(_message(name, file), MechheadsWarning, stacklevel=3)


def check_not_hidden() -> None:
    """Raise an error if importing `tasks` or `circuits` would find a module that is not ours."""
    for name in OURS:
        try:
            spec = find_spec(name)
        except ValueError:  # a module without a spec, e.g. one defined in a notebook
            continue
        if spec is not None and spec.origin and not _is_ours(spec.origin):
            raise MechheadsError(_message(name, spec.origin))


def leave_working_directory() -> None:
    """Do not import an unrelated tasks.py or circuits.py from the working directory.

    `python -m` puts it first on the search path, and so does Ray in its workers. Remove it unless
    it holds our packages.
    """
    try:
        here = Path.cwd().resolve()
    except FileNotFoundError:
        raise MechheadsError(
            "the working directory no longer exists. Change to one that does."
        ) from None
    if here != HOME:
        sys.path[:] = [place for place in sys.path if Path(place or ".").resolve() != here]


def _is_ours(file: str) -> bool:
    return Path(file).resolve().parent.parent == HOME


def _message(name: str, file: str) -> str:
    return (
        f"`import {name}` finds {file}, which shadows the package `{name}` of mechheads. Rename "
        "that file, or run from a different folder."
    )
