"""Runs a folder's settings again and compares every table, number by number."""

import contextlib
import io
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from .cli import VERBS
from .errors import MechheadsError
from .runs import read_run


def repeat(folder: Path, tolerance: float, quiet: bool = False) -> str:
    """A line per table, and a verdict; an error if a number differs by more than the tolerance."""
    record = read_run(folder)
    if record.verb not in VERBS:
        raise MechheadsError(f"{folder} is a run of {record.verb}, which this version has not.")
    verb = getattr(import_module(f"mechheads.{record.verb}"), record.verb)
    with tempfile.TemporaryDirectory() as place:
        with contextlib.redirect_stdout(io.StringIO()):
            verb(**record.settings, out=place, quiet=quiet)
        (again,) = Path(place).iterdir()
        tables = sorted(file.name for file in folder.glob("*.csv"))
        found = {name: compare_tables(folder / name, again / name) for name in tables}
        now = read_run(again).provenance
    lines = [f"{name}: {difference}" for name, difference in found.items()]
    lines += _origins(record.provenance, now)
    worst = max((d.relative for d in found.values()), default=0.0)
    if worst > tolerance:
        raise MechheadsError(f"{folder} gives DIFFERENT numbers now. {' '.join(lines)}")
    verdict = "identical" if worst == 0 else f"equal within {tolerance:g}"
    return "\n".join([*lines, f"{folder}: {verdict}"])


class Difference:
    """How far two tables are apart, and where most."""

    def __init__(self, relative: float, where: str = "") -> None:
        """`relative` to the largest value of the column."""
        self.relative, self.where = relative, where

    def __str__(self) -> str:
        """In words."""
        if self.relative == 0:
            return "identical."
        return f"differs most by {self.relative:.1e} of the column's largest, {self.where}."


def compare_tables(old: Path, new: Path) -> Difference:
    """The largest difference of any cell; tables of other rows, columns or words are infinitely
    far apart.
    """
    if not new.is_file():
        return Difference(float("inf"), "it is not written any more")
    if old.read_bytes() == new.read_bytes():
        return Difference(0.0)
    one, two = pd.read_csv(old), pd.read_csv(new)
    if one.shape != two.shape or list(one.columns) != list(two.columns):
        return Difference(float("inf"), "it has other rows or columns")
    worst = Difference(0.0)
    for column in one.columns:
        a, b = one[column], two[column]
        if not pd.api.types.is_numeric_dtype(a) or not pd.api.types.is_numeric_dtype(b):
            changed = (a != b) & ~(a.isna() & b.isna())
            apart: Any = np.where(changed, np.inf, 0.0)
        else:
            scale = max(float(np.nanmax(np.abs(a.to_numpy(float)))), 1e-12)
            gap = np.abs(a.to_numpy(float) - b.to_numpy(float)) / scale
            apart = np.where(a.isna() & b.isna(), 0.0, np.where(np.isnan(gap), np.inf, gap))
        row = int(np.argmax(apart))
        if apart[row] > worst.relative:
            where = f"{column} in row {row + 1}: {a[row]} was, {b[row]} is"
            worst = Difference(float(apart[row]), where)
    return worst


def _origins(before: Any, after: Any) -> list[str]:
    """What the provenance says has changed since."""
    return [
        f"changed since: {key} was {before.get(key)}, is {after.get(key)}."
        for key in before
        if before.get(key) != after.get(key)
    ]
