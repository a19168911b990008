"""Errors that a user can fix: one line that names the offender and the next step."""

import difflib
from collections.abc import Iterable


class MechheadsError(ValueError):
    """A mistake in the input or the environment; commands print it without a traceback."""


class MechheadsWarning(UserWarning):
    """Something that is probably not what the user meant; commands print it as one line."""


def shown(value: object, most: int = 40) -> str:
    """A text in quotes, or another value as Python shows it, cut if it is long."""
    text = value if isinstance(value, str) else repr(value)
    text = text if len(text) <= most else f"{text[: most - 3]}..."
    return repr(text) if isinstance(value, str) else text


def printable(text: str) -> str:
    """The text on one line; a character that a terminal would obey is shown as its escape.

    >>> print(printable("done\\n\\x1b[2J"))
    done \\x1b[2J
    """
    line = " ".join(text.split())
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)


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
