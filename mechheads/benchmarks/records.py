"""Measurements as tidy CSV files, one folder per release: which machine, which versions, when."""

import csv
import datetime
import io
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import mechheads
from mechheads.runs.files import prepare, write_text

# What tells two rows apart; a row replaces an earlier one that has the same of all of these.
KEYS = ("release", "machine", "threads", "shape", "measurement", "peer", "axis", "size")


def origin() -> dict[str, Any]:
    """The release, the date, and the kind of machine (not its name)."""
    return {
        "release": mechheads.__version__,
        "date": datetime.date.today().isoformat(),
        "machine": processor(),
        "cores": os.cpu_count(),
    }


def processor() -> str:
    """The model of the CPU."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def record(folder: Path, name: str, measured: Iterable[Mapping[str, Any]]) -> Path:
    """Put rows into a CSV file of the folder; they replace earlier ones of the same kind."""
    file = prepare(folder) / name
    new = [{key: shown(value) for key, value in {**origin(), **row}.items()} for row in measured]
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(new[0]), extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(merged(read(file), new))
    return write_text(file, text.getvalue())


def merged(
    before: Sequence[Mapping[str, str]], new: Sequence[Mapping[str, str]]
) -> list[Mapping[str, str]]:
    """Earlier rows in their places, or what replaces them, and then those that are new."""
    by_key = {tuple(row.get(key, "") for key in KEYS): row for row in before}
    by_key |= {tuple(row.get(key, "") for key in KEYS): row for row in new}
    return list(by_key.values())


def read(file: Path) -> list[dict[str, str]]:
    """The rows of a CSV file; none if there is no file."""
    if not file.is_file():
        return []
    with file.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def shown(value: Any) -> str:
    """A cell: four digits of a number, nothing for None."""
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
