"""Runs cells, each into a folder of its own: what is there and whole is not run again.

A sweep's folder:
- cells/NAME/RUN      the run folder of each finished cell;
- failed/NAME.txt     the error of each cell that failed, until it succeeds;
- log.txt             a line per cell that was run, with its time;
- index.html          the overview.
"""

import contextlib
import io
import shutil
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from ..errors import MechheadsError
from ..kept import keeping_models
from ..outputs import write_text
from ..progress import bar
from ..runs import read_run
from .grid import Cell

CELLS, FAILED, LOG = "cells", "failed", "log.txt"


@dataclass(frozen=True)
class Done:
    """A cell that has ended: its error, or None."""

    cell: Cell
    error: str | None
    seconds: float


# Runs cells and gives each as it ends.
Runner = Callable[[list[Cell], Path], Iterator[Done]]


def finished(out: Path, cell: Cell) -> Path | None:
    """The cell's run folder, if it is there and whole."""
    place = out / CELLS / cell.name
    for folder in sorted(place.glob("[!.]*")) if place.is_dir() else ():
        with contextlib.suppress(MechheadsError):
            read_run(folder, cell.verb)
            return folder
    return None


def run_cell(cell: Cell, out: Path) -> Done:
    """Run one cell here; what a killed run left behind is removed first."""
    start = time.monotonic()
    place = out / CELLS / cell.name
    error = None
    try:
        shutil.rmtree(place, ignore_errors=True)
        verb = getattr(import_module(f"mechheads.{cell.verb}"), cell.verb)
        with contextlib.redirect_stdout(io.StringIO()):
            verb(**dict(cell.settings), out=str(place), quiet=True)
        if finished(out, cell) is None:
            error = "it left no run folder that can be read"
    except MechheadsError as problem:
        error = str(problem)
    except Exception as problem:  # one cell's bug must not stop the others
        where = traceback.extract_tb(problem.__traceback__)[-1]
        error = f"{type(problem).__name__}: {problem} ({Path(where.filename).name}:{where.lineno})"
    return Done(cell, error, time.monotonic() - start)


def here(cells: list[Cell], out: Path) -> Iterator[Done]:
    """One after the other, in this process; models stay loaded between them."""
    with keeping_models():
        for cell in cells:
            yield run_cell(cell, out)


def sweep_cells(cells: list[Cell], out: Path, runner: Runner, quiet: bool) -> list[Done]:
    """Run those that are not finished; gives those that failed."""
    for folder in (out / CELLS, out / FAILED):
        folder.mkdir(parents=True, exist_ok=True)
    left = [cell for cell in cells if finished(out, cell) is None]
    failed: list[Done] = []
    with bar(len(cells), "Cells", quiet, initial=len(cells) - len(left)) as progress:
        for done in runner(left, out):
            record(out, done)
            failed += [done] if done.error else []
            progress.set_postfix(failed=len(failed), refresh=False)
            progress.update()
    _forget_others(out, cells)
    return failed


def record(out: Path, done: Done) -> None:
    """The error of a cell, or that it has none any more, and a line in the log."""
    note = out / FAILED / f"{done.cell.name}.txt"
    if done.error:
        shutil.rmtree(out / CELLS / done.cell.name, ignore_errors=True)
        write_text(note, f"{done.error}\n")
    else:
        note.unlink(missing_ok=True)
    state = f"failed: {done.error}" if done.error else "done"
    with (out / LOG).open("a", encoding="utf-8") as stream:
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        stream.write(f"{stamp} {done.cell.name} {done.seconds:.1f} s {state}\n")


def errors(out: Path, cells: Iterable[Cell]) -> dict[str, str]:
    """The recorded error of every cell that has one, by name."""
    found: dict[str, Any] = {}
    for cell in cells:
        note = out / FAILED / f"{cell.name}.txt"
        if note.is_file():
            found[cell.name] = note.read_text(encoding="utf-8").strip()
    return found


def _forget_others(out: Path, cells: list[Cell]) -> None:
    """Errors of cells that are finished now or belong to no cell of this sweep."""
    names = {cell.name for cell in cells if finished(out, cell) is None}
    for note in (out / FAILED).glob("*.txt"):
        if note.stem not in names:
            note.unlink(missing_ok=True)
