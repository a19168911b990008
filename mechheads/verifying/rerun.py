"""Reruns a folder's settings and compares everything that the rerun writes.

1. The settings are taken from the folder only as far as it can be trusted (`trust`).
2. They run again, with as many threads as the run had.
3. The files are written again, from the new numbers but with the folder's own settings and
   provenance, and compared (`comparison`): reports must have the same bytes.
4. A report that differs because other code drew it, or from numbers that are equal only within the
   tolerance, is listed as not verified.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mechheads.cli.commands import COMMANDS
from mechheads.errors import MechheadsError
from mechheads.jobs.run import Session, run_job
from mechheads.models.cache import ModelCache
from mechheads.models.devices import with_threads
from mechheads.progress import bar
from mechheads.runs.folder import REPORTS, Record, read_run
from mechheads.sweeping.cells import CELLS, INDEX, SUMMARY, describe, rows_in, unlisted

from .differences import Difference, compare_folders, compare_values
from .trust import Allowed, trusted_settings, usable_threads

# What draws a report: other versions may draw it differently.
WHY = "drawn by other code, or from numbers that are equal only within the tolerance"
CODE = ("git", "packages", "python")


@dataclass(frozen=True)
class Verdict:
    """The outcome of a rerun: how every file compares, what was not verified, what else changed."""

    folder: Path
    found: Mapping[str, Difference]
    unverified: Sequence[str]
    changes: Sequence[str]
    tolerance: float

    @property
    def worst(self) -> float:
        """The largest difference."""
        return max(difference.relative for difference in self.found.values())

    @property
    def lines(self) -> list[str]:
        """A line per file, and one for each change in what the numbers depend on."""
        return [
            *(f"{name}: {d.words}" for name, d in self.found.items()),
            *(
                f"{name}: not verified: drawn by other code, or from rounded numbers."
                for name in self.unverified
            ),
            *self.changes,
        ]

    @property
    def word(self) -> str:
        """Identical, equal within the tolerance, or different."""
        same = self.worst <= self.tolerance
        word = "identical" if self.worst == 0 else f"equal within {self.tolerance:g}"
        if not same:
            return "DIFFERENT"
        return (
            f"numbers {word}, {' and '.join(self.unverified)} not verified"
            if (self.unverified)
            else word
        )


def repeat(
    folder: Path, tolerance: float, session: Session, allowed: Allowed | None = None
) -> Verdict:
    """Rerun the folder's settings with the same number of threads, and compare everything."""
    record = read_run(folder)
    settings = trusted_settings(folder, record, allowed or Allowed())
    had = next((part.get("threads") for part in record.origins), None)
    with tempfile.TemporaryDirectory() as place:
        try:
            with with_threads(usable_threads(had)):
                found, again = run_job(record.command, settings, place, session)
        except MechheadsError as error:
            raise MechheadsError(f"{folder} cannot be rerun: {error}") from None
        assert again is not None
        now = read_run(again)
        line = COMMANDS[record.command].line(record.settings)
        written = Path(place) / "written"
        found.report(written, replace(record, line=line))
        compared = compare_folders(folder, written)
    compared["headline"] = compare_values(record.headline, now.headline)
    compared["warnings"] = compare_values(record.warnings, now.warnings)
    changes = [
        f"changed since: {name} was {before}, is {after}."
        for name, before, after in _changes(record.provenance, now.provenance)
    ]
    drawn = [name for name in (*REPORTS, "warnings") if compared[name].relative]
    data = [d.relative for name, d in compared.items() if name not in drawn]
    unverified = drawn if _code(record) != _code(now) or 0 < max(data) <= tolerance else []
    kept = {name: d for name, d in compared.items() if name not in unverified}
    return Verdict(folder, kept, unverified, changes, tolerance)


def verify_run(
    folder: Path, tolerance: float, allowed: Allowed, quiet: bool = False
) -> Iterator[str]:
    """A line per table, and a verdict; an error if a number differs by more than the tolerance."""
    verdict = repeat(folder, tolerance, Session(quiet=quiet), allowed)
    if verdict.worst > tolerance:
        raise MechheadsError(f"{folder} gives DIFFERENT numbers now. {' '.join(verdict.lines)}")
    yield from [*verdict.lines, f"{folder}: {verdict.word}"]


def verify_sweep(
    folder: Path, tolerance: float, allowed: Allowed, quiet: bool = False
) -> Iterator[str]:
    """A line per cell of a sweep as it ends; an error at the end if any cell is not the same.

    A cell that differs, or has no run, does not stop the others.
    """
    rows, bad, session = rows_in(folder), [], Session(ModelCache(), quiet=True)
    with bar(len(rows), "Cells", quiet) as progress:
        for ended, row in enumerate(rows, start=1):
            cell = f"{row.command} {row.label}"
            try:
                if row.folder is None:
                    raise MechheadsError("has no run. The overview says why; start the sweep again")
                if mistake := row.mistake(read_run(row.folder)):
                    raise MechheadsError(f"DIFFERENT. {mistake}.")
                with progress.within():
                    verdict = repeat(row.folder, tolerance, session, allowed)
                if verdict.worst > tolerance:
                    raise MechheadsError(f"DIFFERENT. {' '.join(verdict.lines)}")
                line = f"{cell}: {verdict.word}"
            except Exception as error:  # one cell's bug must not stop the others
                known = isinstance(error, MechheadsError)
                line = f"{cell}: {error if known else describe(error)}"
                bad.append(line)
            progress.reach(ended)
            yield line
    if bad:
        raise MechheadsError(f"{len(bad)} of {len(rows)} cells of {folder} failed. {bad[0]}")
    if others := unlisted(folder, rows):
        yield f"{', '.join(others)} in {CELLS}/: not verified: not part of {SUMMARY}."
    yield f"{INDEX}: not verified: it is drawn from the cells."
    yield f"{folder}: {len(rows)} of {len(rows)} cells give the same numbers"


def _changes(
    old: Mapping[str, Any], new: Mapping[str, Any], within: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """Values that have changed, with their names, e.g. `packages torch`."""
    for key, before in old.items():
        after, name = new.get(key), f"{within} {key}".strip()
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            yield from _changes(before, after, name)
        elif before != after:
            yield name, before, after


def _code(record: Record) -> list[Any]:
    """What drew the report: the revision of the code, and the versions of the packages."""
    return [part.get(name) for part in record.origins for name in CODE]
