"""The files that cells read: a cell whose files have changed must run again."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from mechheads.cli.commands import COMMANDS
from mechheads.errors import MechheadsError
from mechheads.jobs.given import files_of
from mechheads.models import locate
from mechheads.options import read_path
from mechheads.runs.files import digest

from .grid import MODELS, TASKS, Cell


def with_inputs(cells: Sequence[Cell]) -> list[Cell]:
    """The cells with the digests of the files and models they name, each file read once.

    A model's digest covers its weights, config, tokenizer and gates; a hub model is identified by
    its name only. A missing file has no digest.
    """
    digests: dict[tuple[str, bool], str] = {}
    made = []
    for cell in cells:
        given = COMMANDS[cell.command].in_full(dict(cell.settings))
        found = {}
        for key in (*_named(given), *((file, False) for file in files_of(given).values())):
            if key not in digests:
                digests[key] = _digest(*key)
            if digests[key]:
                found[key[0]] = digests[key]
        made.append(replace(cell, inputs=tuple(sorted(found.items()))))
    return made


def _named(given: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """The tasks and models of a cell, and whether each is a model."""
    for name in (*TASKS, *MODELS):
        for part in str(given.get(name, "")).split(","):
            yield part.strip(), name in MODELS


def _digest(name: str, model: bool) -> str:
    """SHA-256 of the files behind a name; empty if there are none on this machine."""
    with suppress(MechheadsError, OSError):
        path = read_path(name, "the file")
        here = path.is_dir() or name in (*locate.shipped(), *locate.FETCHABLE)
        return digest(locate.find(name, quiet=True).every_file if model and here else [path])
    return ""
