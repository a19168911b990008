"""Runs a folder's settings again and compares every table and headline, number by number."""

import contextlib
import inspect
import io
import math
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from .cli import VERBS
from .errors import MechheadsError
from .prompts import read
from .runs import ASIDE, Record, read_run


@dataclass(frozen=True)
class Difference:
    """How far two tables are apart relative to the largest value of a column, and where most."""

    relative: float
    where: str = ""

    @property
    def words(self) -> str:
        """For a line of output."""
        if self.relative == 0:
            return "identical."
        return f"differs most by {self.relative:.1e} of the column's largest, {self.where}."


def repeat(folder: Path, tolerance: float, quiet: bool = False) -> str:
    """A line per table, and a verdict; an error if a number differs by more than the tolerance."""
    if not 0 <= tolerance < math.inf:
        raise MechheadsError(f"--tolerance takes 0 or more, got {tolerance}.")
    record = read_run(folder)
    verb, settings = _call(folder, record)
    with tempfile.TemporaryDirectory() as place:
        with contextlib.redirect_stdout(io.StringIO()):
            verb(**settings, out=place, quiet=quiet)
        (again,) = Path(place).iterdir()
        now = read_run(again)
        found = {
            file.name: compare_tables(file, again / file.name)
            for file in sorted(folder.glob("*.csv"))
        }
    found["headline"] = compare_headlines(record.headline, now.headline)
    lines = [f"{name}: {difference.words}" for name, difference in found.items()]
    lines += [
        f"changed since: {key} was {before}, is {now.provenance.get(key)}."
        for key, before in record.provenance.items()
        if before != now.provenance.get(key)
    ]
    worst = max(difference.relative for difference in found.values())
    if worst > tolerance:
        raise MechheadsError(f"{folder} gives DIFFERENT numbers now. {' '.join(lines)}")
    verdict = "identical" if worst == 0 else f"equal within {tolerance:g}"
    return "\n".join([*lines, f"{folder}: {verdict}"])


def compare_tables(old: Path, new: Path) -> Difference:
    """The largest difference of any cell; other rows, columns or words are infinitely far apart."""
    if not new.is_file():
        return Difference(math.inf, "it is not written any more")
    if old.read_bytes() == new.read_bytes():
        return Difference(0.0)
    one, two = pd.read_csv(old), pd.read_csv(new)
    if one.shape != two.shape or list(one.columns) != list(two.columns):
        return Difference(math.inf, "it has other rows or columns")
    worst = Difference(0.0)
    for column in one.columns:
        a, b = pd.Series(one[column]), pd.Series(two[column])
        apart = _apart(a, b)
        row = int(np.argmax(apart))
        if apart[row] > worst.relative:
            where = f"{column} in row {row + 1}: {a[row]} was, {b[row]} is"
            worst = Difference(float(apart[row]), where)
    return worst


def compare_headlines(old: Mapping[str, Any], new: Mapping[str, Any]) -> Difference:
    """The same for the numbers and words of result.json's headline."""
    worst = Difference(0.0)
    for name, before in old.items():
        after = new.get(name)
        numbers = all(isinstance(v, int | float) for v in (before, after))
        if numbers:
            apart = abs(before - after) / max(abs(before), 1e-12)
        else:
            apart = 0.0 if before == after else math.inf
        if apart > worst.relative:
            worst = Difference(apart, f"{name}: {before} was, {after} is")
    return worst


def _call(folder: Path, record: Record) -> tuple[Any, dict[str, Any]]:
    """The verb that made the run, and its settings as the verb's types."""
    if record.verb not in VERBS:
        raise MechheadsError(f"{folder} is a run of {record.verb}, which this version has not.")
    verb = getattr(import_module(f"mechheads.{record.verb}"), record.verb)
    parameters = inspect.signature(verb).parameters
    if not set(ASIDE) <= set(parameters):
        raise MechheadsError(f"{folder} is a run of {record.verb}, which leaves no run folders.")
    free = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    settings = {}
    for name, value in record.settings.items():
        if name in parameters:
            settings[name] = read(value, parameters[name].annotation, name)
        elif free:
            settings[name] = value
        else:
            raise MechheadsError(f"{folder} is damaged: {record.verb} has no setting {name}.")
    return verb, settings


def _apart(a: pd.Series, b: pd.Series) -> np.ndarray:
    """How far the cells of two columns are apart, relative to the first one's largest."""
    both = pd.api.types.is_numeric_dtype(a) and pd.api.types.is_numeric_dtype(b)
    if not both:
        return np.where((a != b) & ~(a.isna() & b.isna()), np.inf, 0.0)
    one, two = a.to_numpy(float), b.to_numpy(float)
    scale = max(float(np.nan_to_num(np.abs(one)).max()), 1e-12)
    gap = np.abs(one - two) / scale
    return np.where(np.isnan(one) & np.isnan(two), 0.0, np.where(np.isnan(gap), np.inf, gap))
