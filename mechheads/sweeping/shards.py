"""Shards: several processes, on one machine or many, each run a share of the cells of one sweep.

1. A shard takes its share of the grid: of 16 shards the third runs cells 3, 19, 35, ...
2. It shares the folder's lock with the other shards, and has a lock for the cell that it runs.
3. When it ends, it tries to be alone in the folder. The last one is, and writes the overview.

While shards run, `.running` has the locks of their cells, and a log for each of them.
"""

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mechheads.errors import MechheadsError, shown
from mechheads.runs.files import HOST, prepare, recover, write_text
from mechheads.runs.locks import claimed

from .cells import CELLS, FAILED, LOG, Sweep, finished
from .grid import Cell

RUNNING = ".running"
PATIENCE = 60.0  # seconds to wait for one who writes the overview
MOST = 100_000


@dataclass(frozen=True)
class Shard:
    """One of several shares of a grid; the first is 1."""

    index: int
    count: int

    def of(self, cells: Sequence[Cell]) -> list[Cell]:
        """The shard's cells: every count-th, so that each shard has some of every model."""
        return list(cells[self.index - 1 :: self.count])


def read_shard(text: str) -> Shard:
    """The shard that a text such as 3/16 names."""
    found = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text)
    shard = Shard(*map(int, found.groups())) if found else Shard(0, 0)
    if not 1 <= shard.index <= shard.count <= MOST:
        raise MechheadsError(
            f"--shard takes I/N with I from 1 to N, for example 3/16; got {shown(text)}."
        )
    return shard


def look_at(share: Sequence[Cell], out: Path) -> Sweep:
    """The state of a share of the cells; nothing is removed, because others run theirs."""
    for part in (CELLS, FAILED, RUNNING):
        prepare(out / part)
    runs = {cell: run for cell in share if (run := finished(out, cell))}
    return Sweep(out, share, runs, {}, f"{RUNNING}/{HOST}-{os.getpid()}.log")


def unclaimed(cells: list[Cell], out: Path) -> Iterator[Cell]:
    """Every cell that no other process runs or has finished, with its lock while it has its turn.

    What others run is waited for at the end: they may die.
    """
    taken: list[Cell] = []
    for cell in cells:
        with claimed(_lock(out, cell), 0.0) as ours:
            if not ours:
                taken.append(cell)
            elif _is_left(out, cell):
                yield cell
    for cell in taken:
        with claimed(_lock(out, cell), float("inf")):
            if _is_left(out, cell):
                yield cell


def take_over(swept: Sweep) -> None:
    """Add the cells that other processes have finished meanwhile."""
    for cell in swept.cells:
        if cell not in swept.runs and (run := finished(swept.out, cell)):
            swept.runs[cell] = run
            swept.errors.pop(cell, None)


def gather_logs(out: Path) -> None:
    """Move the lines of all shards to the sweep's log, in order of time; needs to be alone."""
    if not (out / RUNNING).is_dir():
        return
    try:
        lines = [
            line
            for file in (out / RUNNING).glob("*.log")
            for line in file.read_text(encoding="utf-8", errors="replace").splitlines()
        ]
        if lines:
            log = out / LOG
            text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
            new = sorted(set(lines) - set(text.splitlines()))
            write_text(log, text + "".join(f"{line}\n" for line in new))
    except OSError as error:
        raise MechheadsError(f"cannot read the logs in {out} ({error.strerror}).") from None
    shutil.rmtree(out / RUNNING, ignore_errors=True)


def _lock(out: Path, cell: Cell) -> Path:
    return out / RUNNING / f"{cell.name}.lock"


def _is_left(out: Path, cell: Cell) -> bool:
    """Whether a cell, which is ours now, has still to be run."""
    recover(out / CELLS / cell.name)
    return finished(out, cell) is None
