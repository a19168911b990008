"""Our top-level packages beside this one, and what may hide them.

`tasks` and `circuits` are common names: a file tasks.py in a script's folder hides our package.
"""

import sys
import warnings
from importlib.util import find_spec
from pathlib import Path

from mechheads.errors import MechheadsError

OURS = ("tasks", "circuits")
HOME = Path(__file__).resolve().parents[1]


def warn_if_hidden() -> None:
    """Warn if the script has imported another `tasks` or `circuits` than ours."""
    for name in OURS:
        file = getattr(sys.modules.get(name), "__file__", None)
        if file and not _is_ours(file):
            warnings.warn(_message(name, file), stacklevel=3)


def check_not_hidden() -> None:
    """An error if importing `tasks` or `circuits` would give another module than ours."""
    for name in OURS:
        try:
            spec = find_spec(name)
        except ValueError:  # a module without a spec, such as one typed into a notebook
            continue
        if spec is not None and spec.origin and not _is_ours(spec.origin):
            raise MechheadsError(_message(name, spec.origin))


def _is_ours(file: str) -> bool:
    return Path(file).resolve().parent.parent == HOME


def _message(name: str, file: str) -> str:
    return (
        f"`import {name}` finds {file}, which hides the package `{name}` of mechheads. Rename that "
        "file, or run from another folder."
    )
