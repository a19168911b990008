"""Our other top-level packages, and what may shadow them.

`tasks` and `circuits` are common names: a file tasks.py in a script's folder shadows our package.
"""

import sys
import warnings
from importlib.util import find_spec
from pathlib import Path

from mechheads.errors import MechheadsError, MechheadsWarning

OURS = ("tasks", "circuits")
HOME = Path(__file__).resolve().parents[1]


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
