"""Compares two run folders, file by file and number by number.

Bytes that are equal are identical. Where they differ: CSV files are compared cell by cell, JSON
files and arrays number by number, everything else (reports, answers) not at all: it differs.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from safetensors import SafetensorError, safe_open

from mechheads.runs.folder import RESULT, TIMINGS, read_table

# Numbers below this are compared relative to it: their last digits are float32's rounding.
NOTHING = 1e-3


@dataclass(frozen=True)
class Difference:
    """The largest difference in a file, relative to the largest value around it, and where."""

    relative: float
    where: str = ""

    @property
    def words(self) -> str:
        """The difference in words."""
        if self.relative == 0:
            return "identical."
        if math.isinf(self.relative):
            return f"different: {self.where}."
        return f"differs by up to {self.relative:.1e} of the largest value: {self.where}."


def compare_folders(old: Path, new: Path) -> dict[str, Difference]:
    """Every file of both folders but result.json, whose parts are compared apart, and timings."""
    names = {file.name for folder in (old, new) for file in folder.iterdir()}
    return {
        name: compare_files(old / name, new / name) for name in sorted(names - {RESULT, TIMINGS})
    }


def compare_files(old: Path, new: Path) -> Difference:
    """By the kind of file; a file that only one folder has is infinitely different."""
    if not new.is_file():
        return Difference(math.inf, "a rerun does not write it")
    if not old.is_file():
        return Difference(math.inf, "it is missing from the folder")
    if old.read_bytes() == new.read_bytes():
        return Difference(0.0)
    compare = {".csv": compare_tables, ".json": _json_files, ".safetensors": _arrays}
    try:
        if old.suffix in compare:
            return compare[old.suffix](old, new)
    except (ValueError, RecursionError, SafetensorError, OSError) as error:
        return Difference(math.inf, f"it cannot be read ({str(error)[:80]})")
    return Difference(math.inf, "its bytes differ")


def compare_tables(old: Path, new: Path) -> Difference:
    """The largest difference of any cell; differing rows, columns or text count as infinite."""
    one, two = read_table(old), read_table(new)
    if one.shape != two.shape or list(one.columns) != list(two.columns):
        return Difference(math.inf, "it has different rows or columns")
    if not len(one):
        return Difference(math.inf, "its bytes differ")
    worst = Difference(0.0)
    for column in one.columns:
        a, b = pd.Series(one[column]), pd.Series(two[column])
        apart = _apart(a, b)
        row = int(np.argmax(apart))
        if apart[row] > worst.relative:
            where = f"{column} in row {row + 1} was {a[row]}, is {b[row]}"
            worst = Difference(float(apart[row]), where)
    return worst


def compare_values(old: Any, new: Any, name: str = "") -> Difference:
    """Numbers, text, lists and tables of them, to the last one; NaN equals only NaN."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        if old.keys() != new.keys():
            odd = sorted(map(str, old.keys() ^ new.keys()))[0]
            return Difference(math.inf, f"{name} {odd} is only in one of the two".strip())
        return _worst(compare_values(old[key], new[key], f"{name} {key}".strip()) for key in old)
    if isinstance(old, list | tuple) and isinstance(new, list | tuple) and len(old) == len(new):
        return _worst(compare_values(a, b, name) for a, b in zip(old, new, strict=True))
    return Difference(_between(old, new), f"{name} was {old}, is {new}".strip())


def _worst(found: Iterable[Difference]) -> Difference:
    return max(found, key=lambda difference: difference.relative, default=Difference(0.0))


def _between(old: Any, new: Any) -> float:
    numbers = [isinstance(v, int | float) and not isinstance(v, bool) for v in (old, new)]
    if not all(numbers):
        return 0.0 if type(old) is type(new) and old == new else math.inf
    if old == new:
        return 0.0
    try:
        one, two = float(old), float(new)
    except OverflowError:  # JSON has whole numbers of any length
        return math.inf
    if math.isnan(one) and math.isnan(two):
        return 0.0
    gap = abs(one - two) / max(abs(one), NOTHING)
    return gap if math.isfinite(gap) else math.inf


def _json_files(old: Path, new: Path) -> Difference:
    return compare_values(*(json.loads(file.read_text(encoding="utf-8")) for file in (old, new)))


def _arrays(old: Path, new: Path) -> Difference:
    """The plain part of the header, and every tensor, relative to its largest value."""
    with safe_open(old, "np") as one, safe_open(new, "np") as two:
        names = set(one.keys()), set(two.keys())
        if names[0] != names[1]:
            return Difference(math.inf, "it has different arrays")
        headers = [json.loads((part.metadata() or {}).get("result", "{}")) for part in (one, two)]
        worst = [compare_values(headers[0], headers[1], "header")]
        for name in sorted(names[0]):
            a, b = one.get_tensor(name), two.get_tensor(name)
            if a.shape != b.shape or a.dtype != b.dtype:
                return Difference(math.inf, f"{name} has a different shape or type")
            if a.size:
                gaps = _gaps(a.astype(float).ravel(), b.astype(float).ravel())
                worst.append(Difference(float(gaps.max()), name))
    return _worst(worst)


def _apart(a: pd.Series, b: pd.Series) -> np.ndarray:
    """Differences between the cells of two columns."""
    both = pd.api.types.is_numeric_dtype(a) and pd.api.types.is_numeric_dtype(b)
    if not both:
        return np.where((a != b) & ~(a.isna() & b.isna()), np.inf, 0.0)
    return _gaps(a.to_numpy(float), b.to_numpy(float))


def _gaps(one: np.ndarray, two: np.ndarray) -> np.ndarray:
    """Relative to the largest finite value; NaN equals only NaN, infinity only itself."""
    finite = one[np.isfinite(one)]
    scale = max(float(np.abs(finite).max()) if finite.size else 0.0, 1e-12)
    same = (one == two) | (np.isnan(one) & np.isnan(two))
    with np.errstate(invalid="ignore"):
        gap = np.abs(one - two) / scale
    return np.where(same, 0.0, np.where(np.isfinite(gap), gap, np.inf))
