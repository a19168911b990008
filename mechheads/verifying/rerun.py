"""Reruns a folder's settings and compares every table and headline, number by number."""

import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mechheads.cli.commands import COMMANDS
from mechheads.errors import MechheadsError
from mechheads.jobs.run import Session, run_job
from mechheads.models.cache import ModelCache
from mechheads.models.devices import with_threads
from mechheads.options import read_value
from mechheads.progress import bar
from mechheads.runs.folder import Record, read_run
from mechheads.sweeping.cells import describe, runs_in

# Headline numbers below this are compared relative to it: they are float32's last digits.
NOTHING = 1e-3


@dataclass(frozen=True)
class Difference:
    """The largest difference of two tables, relative to its column's largest value, and where."""

    relative: float
    where: str = ""

    @property
    def words(self) -> str:
        """The difference in words."""
        if self.relative == 0:
            return "identical."
        return f"differs by up to {self.relative:.1e} of the column's maximum: {self.where}."


@dataclass(frozen=True)
class Verdict:
    """The outcome of a rerun: the difference in every table, and what else changed."""

    folder: Path
    found: Mapping[str, Difference]
    changes: Sequence[str]
    tolerance: float

    @property
    def worst(self) -> float:
        """The largest difference."""
        return max(difference.relative for difference in self.found.values())

    @property
    def lines(self) -> list[str]:
        """A line per table, and one for each change in what the numbers depend on."""
        return [*(f"{name}: {d.words}" for name, d in self.found.items()), *self.changes]

    @property
    def word(self) -> str:
        """Identical, equal within the tolerance, or different."""
        if self.worst == 0:
            return "identical"
        same = self.worst <= self.tolerance
        return f"equal within {self.tolerance:g}" if same else "DIFFERENT"


def repeat(folder: Path, tolerance: float, session: Session) -> Verdict:
    """Rerun the folder's settings with the same number of threads, and compare the numbers."""
    record = read_run(folder)
    settings = _settings(folder, record)
    had = next((part.get("threads") for part in record.origins), None)
    threads = with_threads(had if isinstance(had, int) and had > 0 else None)
    with tempfile.TemporaryDirectory() as place:
        try:
            with threads:
                run_job(record.command, settings, place, session)
        except MechheadsError as error:
            raise MechheadsError(
                f"{folder} cannot be rerun: {error} Relative paths are resolved from the working "
                "directory."
            ) from None
        (again,) = Path(place).iterdir()
        now = read_run(again)
        found = {
            file.name: compare_tables(file, again / file.name)
            for file in sorted(folder.glob("*.csv"))
        }
    found["headline"] = compare_headlines(record.headline, now.headline)
    changes = [
        f"changed since: {name} was {before}, is {after}."
        for name, before, after in _changes(record.provenance, now.provenance)
    ]
    if record.warnings != now.warnings:
        said = [" ".join(warnings) or "none" for warnings in (record.warnings, now.warnings)]
        changes.append(f"changed since: warnings were {said[0]}, are {said[1]}.")
    return Verdict(folder, found, changes, tolerance)


def verify_run(folder: Path, tolerance: float, quiet: bool = False) -> Iterator[str]:
    """A line per table, and a verdict; an error if a number differs by more than the tolerance."""
    verdict = repeat(folder, tolerance, Session(quiet=quiet))
    if verdict.worst > tolerance:
        raise MechheadsError(f"{folder} gives DIFFERENT numbers now. {' '.join(verdict.lines)}")
    yield from [*verdict.lines, f"{folder}: {verdict.word}"]


def verify_sweep(folder: Path, tolerance: float, quiet: bool = False) -> Iterator[str]:
    """A line per cell of a sweep as it ends; an error at the end if any cell is not the same.

    A cell that differs, or has no run, does not stop the others.
    """
    cells, bad, session = runs_in(folder), [], Session(ModelCache(), quiet=True)
    with bar(len(cells), "Cells", quiet) as progress:
        for cell, run in cells.items():
            try:
                if run is None:
                    raise MechheadsError("has no run. The overview says why; start the sweep again")
                verdict = repeat(run, tolerance, session)
                if verdict.worst > tolerance:
                    raise MechheadsError(f"DIFFERENT. {' '.join(verdict.lines)}")
                line = f"{cell}: {verdict.word}"
            except Exception as error:  # one cell's bug must not stop the others
                known = isinstance(error, MechheadsError)
                line = f"{cell}: {error if known else describe(error)}"
                bad.append(line)
            progress.update()
            yield line
    if bad:
        raise MechheadsError(f"{len(bad)} of {len(cells)} cells of {folder} failed. {bad[0]}")
    yield f"{folder}: {len(cells)} of {len(cells)} cells give the same numbers"


def compare_tables(old: Path, new: Path) -> Difference:
    """The largest difference of any cell; differing rows, columns or text count as infinite."""
    if not new.is_file():
        return Difference(math.inf, "the file is no longer written")
    if old.read_bytes() == new.read_bytes():
        return Difference(0.0)
    one, two = pd.read_csv(old), pd.read_csv(new)
    if one.shape != two.shape or list(one.columns) != list(two.columns):
        return Difference(math.inf, "it has different rows or columns")
    worst = Difference(0.0)
    for column in one.columns:
        a, b = pd.Series(one[column]), pd.Series(two[column])
        apart = _apart(a, b)
        row = int(np.argmax(apart))
        if apart[row] > worst.relative:
            where = f"{column} in row {row + 1} was {a[row]}, is {b[row]}"
            worst = Difference(float(apart[row]), where)
    return worst


def compare_headlines(old: Mapping[str, Any], new: Mapping[str, Any]) -> Difference:
    """The same for the numbers and text of result.json's headline, including its parts."""
    worst = Difference(0.0)
    for name, before in old.items():
        after = new.get(name)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            inner = compare_headlines(before, after)
            apart, where = inner.relative, f"{name} {inner.where}"
        else:
            apart, where = _apart_values(before, after), f"{name} was {before}, is {after}"
        if apart > worst.relative:
            worst = Difference(apart, where)
    return worst


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


def _apart_values(before: Any, after: Any) -> float:
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return max(map(_apart_values, before, after), default=0.0)
    if isinstance(before, int | float) and isinstance(after, int | float):
        return abs(before - after) / max(abs(before), NOTHING)
    return 0.0 if before == after else math.inf


def _settings(folder: Path, record: Record) -> dict[str, Any]:
    """The run's full settings, as the types that its command takes."""
    command = COMMANDS.get(record.command)
    if command is None or not command.swept:
        raise MechheadsError(
            f"{folder} is a run of {record.command!r}, which cannot be verified. Only "
            f"{', '.join(c.name for c in COMMANDS.values() if c.swept)} can."
        )
    own, settings = command.settings, {}
    for name, value in record.settings.items():
        if name in own:
            settings[name] = read_value(value, own[name].annotation, name)
        elif command.takes:
            settings[name] = value
        else:
            raise MechheadsError(f"{folder} is damaged: {command.name} has no setting {name}.")
    return command.in_full(settings)


def _apart(a: pd.Series, b: pd.Series) -> np.ndarray:
    """Differences between the cells of two columns, relative to the first one's largest value."""
    both = pd.api.types.is_numeric_dtype(a) and pd.api.types.is_numeric_dtype(b)
    if not both:
        return np.where((a != b) & ~(a.isna() & b.isna()), np.inf, 0.0)
    one, two = a.to_numpy(float), b.to_numpy(float)
    scale = max(float(np.nan_to_num(np.abs(one)).max()), 1e-12)
    gap = np.abs(one - two) / scale
    return np.where(np.isnan(one) & np.isnan(two), 0.0, np.where(np.isnan(gap), np.inf, gap))
