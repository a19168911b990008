"""Writes results: only under the chosen folder, and each file atomically."""

import csv
import hashlib
import os
import shutil
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from mechheads.errors import MechheadsError


def prepare(folder: Path) -> Path:
    """The folder, created if needed; raises an error if it is not writable."""
    probe = folder / ".writable"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise MechheadsError(
            f"cannot write to {folder} ({error.strerror}). Choose a different --out."
        ) from None
    return folder


def write_text(file: Path, text: str) -> Path:
    """Write a text file atomically."""
    return write_bytes(file, text.encode())


def write_bytes(file: Path, content: bytes) -> Path:
    """Write a file atomically."""
    partial = file.with_name(f".{file.name}.partial")
    try:
        partial.write_bytes(content)
        return partial.replace(file)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise MechheadsError(f"cannot write {file} ({error.strerror}).") from None


def append_row(file: Path, row: Mapping[str, str | int]) -> None:
    """Append a row to a CSV file, with a header if the file is new."""
    new = not file.exists() or not file.stat().st_size
    with file.open("a", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, fieldnames=list(row))
        if new:
            writer.writeheader()
        writer.writerow(row)


def replace_folder(place: Path, new: Path) -> None:
    """Rename `new` to `place`; a folder already there is moved aside, then deleted."""
    old = place.with_name(f".{place.name}.{os.getpid()}.old")
    if place.exists():
        place.rename(old)
    new.rename(place)
    shutil.rmtree(old, ignore_errors=True)


def digest(files: Sequence[Path]) -> str:
    """SHA-256 of the concatenated contents; an unchanged file is read once per process."""
    return _digest(tuple((file, file.stat().st_size, file.stat().st_mtime_ns) for file in files))


@lru_cache(maxsize=64)
def _digest(files: tuple[tuple[Path, int, int], ...]) -> str:
    found = hashlib.sha256()
    for file, _, _ in files:
        with file.open("rb") as stream:
            for chunk in iter(lambda: stream.read(1 << 20), b""):
                found.update(chunk)
    return found.hexdigest()
