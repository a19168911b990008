"""Notices and progress bars on stderr, for terminals only: silent in pipes and with --quiet."""

import sys
from typing import Any

from tqdm import tqdm
from tqdm.asyncio import tqdm_asyncio


def watched(quiet: bool = False) -> bool:
    """Whether someone is watching: stderr is a terminal and --quiet was not given."""
    return not quiet and sys.stderr.isatty()


def say(text: str, quiet: bool = False) -> None:
    """Print a line about what is being done."""
    if watched(quiet):
        print(text, file=sys.stderr)


class Bar(tqdm_asyncio):
    """A progress bar class for libraries that create their own bars."""

    def __init__(self, *args: Any, **options: Any) -> None:
        """Like tqdm's, but disabled if nobody is watching."""
        options.pop("name", None)
        quiet = bool(options.get("disable"))
        super().__init__(*args, **(options | {"disable": not watched(quiet), "leave": False}))


class QuietBar(Bar):
    """The same with --quiet: never shown."""

    def __init__(self, *args: Any, **options: Any) -> None:
        """Like tqdm's, but disabled."""
        super().__init__(*args, **(options | {"disable": True}))


def bar(total: int, description: str, quiet: bool = False, **options: Any) -> tqdm:
    """A progress bar that disappears when it is done."""
    disable = not watched(quiet)
    return tqdm(total=total, desc=description, disable=disable, leave=False, **options)
