"""Locks for several processes that write to one folder at the same time, on one machine or many.

`files.alone` keeps all others out; `together` lets in those that also work together; `claimed`
gives one piece of their work to one of them. The system drops a lock when its process dies.
"""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from mechheads.errors import MechheadsError

from .files import LOCK

PAUSE = 0.2  # seconds between two attempts


@contextlib.contextmanager
def together(folder: Path, wait: float) -> Iterator[None]:
    """Write to a folder with others that do so too; waits for one that is `alone` in it."""
    lock = _locked(folder / LOCK, wait, shared=True)
    if lock is None:
        raise MechheadsError(
            f"another process is writing to {folder}. Wait for it, or choose a different --out."
        )
    try:
        yield
    finally:
        os.close(lock)


@contextlib.contextmanager
def claimed(file: Path, wait: float) -> Iterator[bool]:
    """Whether the work that the file stands for is this process's until the end of the block."""
    lock = _locked(file, wait, shared=False)
    try:
        yield lock is not None
    finally:
        if lock is not None:
            os.close(lock)


def _locked(file: Path, wait: float, shared: bool) -> int | None:
    """An open file with its lock; None if another process has kept it for so many seconds."""
    try:
        import fcntl
    except ModuleNotFoundError:
        raise MechheadsError("this system has no flock. Run the sweep without --shard.") from None
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    until = time.monotonic() + wait
    while True:
        try:
            opened = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise MechheadsError(f"cannot lock {file} ({error.strerror}).") from None
        kept = False
        try:
            fcntl.flock(opened, kind | fcntl.LOCK_NB)
            kept = bool(os.fstat(opened).st_nlink)  # else its last owner has removed it
        except BlockingIOError:
            if time.monotonic() >= until:
                return None
            time.sleep(PAUSE)
        except OSError as error:
            raise MechheadsError(f"cannot lock {file} ({error.strerror}).") from None
        finally:
            if not kept:
                os.close(opened)
        if kept:
            return opened
