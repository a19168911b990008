"""Errors that a user can fix: one line that names the offender and the next step."""

import difflib
from collections.abc import Iterable


class MechheadsError(ValueError):
    """A mistake in the input or the environment; commands print it without a traceback."""


def suggest(name: str, choices: Iterable[str]) -> str:
    """` Did you mean 'ioi'?` if a choice is close to the name, else an empty string."""
    lowered = {choice.lower(): choice for choice in choices if choice != name}
    close = difflib.get_close_matches(name.lower(), lowered, n=2, cutoff=0.6)
    return f" Did you mean {' or '.join(repr(lowered[c]) for c in close)}?" if close else ""


def unknown(kind: str, name: str, choices: Iterable[str]) -> MechheadsError:
    """`Unknown task 'iol'. Did you mean 'ioi'? Choose from: docstring, ioi.`"""
    choices = sorted(choices)
    offer = f"Choose from: {', '.join(choices)}." if choices else "None are available."
    return MechheadsError(f"Unknown {kind} {name!r}.{suggest(name, choices)} {offer}")
