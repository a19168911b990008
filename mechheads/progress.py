"""Notices and progress bars on stderr: for people who watch, silent in pipes and with --quiet."""

import sys
from typing import Any

from tqdm import tqdm


def watched(quiet: bool = False) -> bool:
    """Whether somebody watches: stderr is a terminal, and --quiet was not given."""
    return not quiet and sys.stderr.isatty()


def say(text: str, quiet: bool = False) -> None:
    """A line about what is being done."""
    if watched(quiet):
        print(text, file=sys.stderr)


def bar(total: int, description: str, quiet: bool = False, **options: Any) -> tqdm:
    """A progress bar that vanishes when it is done."""
    disable = not watched(quiet)
    return tqdm(total=total, desc=description, disable=disable, leave=False, **options)
