"""Writes results: only under the chosen folder, and each file atomically."""

import contextlib
import csv
import ctypes
import glob
import hashlib
import io
import os
import re
import shutil
import socket
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from mechheads.errors import MechheadsError

HOST = re.sub(r"\W", "", socket.gethostname()) or "host"
LOCK = ".lock"
AT_FDCWD, RENAME_EXCHANGE = -100, 2  # of Linux's renameat2


class InUse(MechheadsError):
    """Another process is writing to a folder."""


def prepare(folder: Path) -> Path:
    """The folder, created if needed; raises an error if it is not writable."""
    probe = folder / ".writable"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink(missing_ok=True)  # another process may have been faster
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
    try:
        new = not file.exists() or not file.stat().st_size
        with file.open("a", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, fieldnames=list(row))
            if new:
                writer.writeheader()
            writer.writerow(row)
    except OSError as error:
        raise MechheadsError(f"cannot write {file} ({error.strerror}).") from None


def keep_rows(file: Path, column: str, last: int) -> None:
    """Drop the rows of a CSV file whose number in a column is above `last`."""
    if not file.is_file():
        return
    with file.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.reader(stream))
    if not rows or column not in rows[0]:
        return
    at = rows[0].index(column)
    kept = [row for row in rows[1:] if len(row) == len(rows[0]) and int(row[at]) <= last]
    text = io.StringIO(newline="")
    csv.writer(text).writerows([rows[0], *kept])
    write_bytes(file, text.getvalue().encode())


def beside(place: Path, kind: str) -> Path:
    """A hidden name next to a file or folder, reserved for this process."""
    return place.with_name(f".{place.name}.{HOST}-{os.getpid()}.{kind}")


def recover(place: Path) -> None:
    """Clean up what a killed process left beside a folder.

    Half-written folders go. A finished one that was moved aside, and whose successor never came,
    gets its name back.
    """
    pattern = re.compile(rf"\.{re.escape(place.name)}\.{re.escape(HOST)}-(\d+)\.(partial|old)")
    if not place.parent.is_dir():
        return
    for left in sorted(place.parent.glob(f".{glob.escape(place.name)}.*")):
        found = pattern.fullmatch(left.name)
        if not found or _is_alive(int(found[1])):
            continue
        if found[2] == "old" and not place.exists():
            left.rename(place)
        else:
            shutil.rmtree(left, ignore_errors=True)


def replace_folder(place: Path, new: Path) -> None:
    """Put a folder in the place of another: in one step where the system can exchange names."""
    old = beside(place, "old")
    if place.is_symlink() or (place.exists() and not place.is_dir()):
        raise MechheadsError(f"{place} is in the way: it is no folder of ours. Move it elsewhere.")
    if place.exists() and not _exchange(place, new):
        place.rename(old)
    if not place.exists():
        new.rename(place)
    shutil.rmtree(old, ignore_errors=True)
    shutil.rmtree(new, ignore_errors=True)


def _exchange(one: Path, two: Path) -> bool:
    """Swap two names in one step; False where the system cannot."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    return rename(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(two), RENAME_EXCHANGE) == 0


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        pass
    return pid == os.getpid() or Path(f"/proc/{pid}").exists() or not Path("/proc").is_dir()


@contextlib.contextmanager
def alone(folder: Path, wait: float = 0.0) -> Iterator[None]:
    """Keep other processes out of a folder until this one has finished or died.

    If another one is there, wait for it for so many seconds, and then raise an error.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(folder / LOCK, timeout=wait)
    try:
        lock.acquire()
    except Timeout:
        raise InUse(
            f"another process is writing to {folder}. Wait for it, or choose a different --out."
        ) from None
    except OSError as error:
        raise MechheadsError(f"cannot lock {folder / LOCK} ({error.strerror}).") from None
    try:
        yield
    finally:
        lock.release()


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
