"""Runs cells, each into its own folder; complete cells are not run again.

A sweep's folder:
- cells/NAME/RUN            the run folder of each finished cell (cells/.NAME while it runs);
- cells/NAME/inputs.json    digests of the files it read; if they change, it runs again;
- failed/NAME.txt           the error of each cell that failed, until it succeeds;
- log.txt                   a line per cell run, with its time;
- .running/                 while shards run: who runs what, and their logs (shards.py);
- index.html, sweep.json    the overview.
"""

import contextlib
import json
import re
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mechheads.cli.commands import COMMANDS
from mechheads.errors import MechheadsError
from mechheads.jobs.run import Session, run_job
from mechheads.models.cache import ModelCache
from mechheads.options import read_path
from mechheads.progress import bar, drawn
from mechheads.runs.files import prepare, recover, replace_folder, write_text
from mechheads.runs.folder import Record, read_run

from .grid import Cell

CELLS, FAILED, LOG, INPUTS = "cells", "failed", "log.txt", "inputs.json"
INDEX, SUMMARY = "index.html", "sweep.json"


@dataclass(frozen=True)
class CellRun:
    """The run of a finished cell."""

    folder: Path
    record: Record


@dataclass(frozen=True)
class Done:
    """A cell that has ended, with an error or a run."""

    cell: Cell
    error: str | None
    seconds: float
    run: CellRun | None = None


@dataclass(frozen=True)
class Sweep:
    """A sweep's folder, cells and log, with the runs and errors of the cells that have ended."""

    out: Path
    cells: Sequence[Cell]
    runs: dict[Cell, CellRun]
    errors: dict[Cell, str]
    log: str = LOG


# Runs cells and yields each as it ends; in between, it yields the number of running cells.
Runner = Callable[[list[Cell], Path], Iterator[Done | int]]


def finished(out: Path, cell: Cell) -> CellRun | None:
    """The cell's run, if it is complete and its inputs have not changed since.

    Inputs that cannot be found count as unchanged: a disk may not be mounted.
    """
    place = out / CELLS / cell.name
    before = _inputs(place)
    if not place.is_dir() or any(before.get(name) != digest for name, digest in cell.inputs):
        return None
    for folder in sorted(place.glob("[!.]*/")):
        with contextlib.suppress(MechheadsError):
            record = read_run(folder, cell.command)
            wanted = COMMANDS[cell.command].in_full(dict(cell.settings))
            if all(record.settings.get(name, value) == value for name, value in wanted.items()):
                return CellRun(folder, record)
    return None


def is_sweep(folder: Path) -> bool:
    """Whether the folder is that of a finished sweep."""
    return (folder / SUMMARY).is_file() and (folder / CELLS).is_dir()


@dataclass(frozen=True)
class Row:
    """A row of the overview: a cell by its command and label, and what is said of its run."""

    command: str
    label: str
    folder: Path | None
    said: Mapping[str, Any]

    def mistake(self, record: Record) -> str:
        """What the overview says otherwise than the run's own record; empty if nothing."""
        if self.command != record.command or not _describes(self.label, record):
            return f"its run is one of {record.command} with other settings than it says"
        for name, value in (("headline", record.headline), ("warnings", list(record.warnings))):
            if self.said.get(name) != value:
                return f"its {name} in {SUMMARY} is not that of its run"
        return ""


def rows_in(folder: Path) -> list[Row]:
    """The rows of a finished sweep's overview; an error if it cannot be one."""
    try:
        content = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
        rows = [
            Row(
                str(row["command"]),
                str(row["cell"]),
                _below(folder, row["report"]) if row.get("report") else None,
                row,
            )
            for row in content
        ]
        if not rows:
            raise ValueError("it has no cells")
        runs = [row.folder for row in rows if row.folder]
        if len(set(runs)) < len(runs) or len({(r.command, r.label) for r in rows}) < len(rows):
            raise ValueError("it has a cell or a run twice")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise MechheadsError(
            f"{folder / SUMMARY} is damaged ({error!r}). Start the sweep again to repair it."
        ) from None
    return rows


def unlisted(folder: Path, rows: Sequence[Row]) -> list[str]:
    """The cells' folders that no row of the overview is about."""
    listed = {row.folder.parent.name for row in rows if row.folder}
    return sorted(f.name for f in (folder / CELLS).iterdir() if f.name not in listed)


def _below(folder: Path, report: str) -> Path:
    """The folder of a report, which must be a run's of one of the sweep's cells."""
    place = (folder / read_path(report, "a report")).resolve().parent
    cells = (folder / CELLS).resolve()
    if not place.is_relative_to(cells) or len(place.relative_to(cells).parts) != 2:
        raise ValueError(f"{report[:80]} is not below {CELLS}/")
    return cells / place.relative_to(cells)


def _describes(label: str, record: Record) -> bool:
    """Whether a cell's label fits a run: `name value, name value`, any of its settings."""
    settings = {name: f"{name} {value}" for name, value in record.settings.items()}
    if (flags := COMMANDS.get(record.command)) is None:
        return False
    unused = {*flags.settings, *flags.options} - set(settings)
    left = "" if label == record.command else label
    while left:
        fits = [t for t in settings.values() if f"{left}, ".startswith(f"{t}, ")]
        if not fits and left.partition(" ")[0] in unused:  # a run of saved runs has few settings
            fits = [left.partition(", ")[0]]
        if not fits:
            return False
        left = left[len(max(fits, key=len)) + 2 :]
    return True


def is_ours(name: str) -> bool:
    """Whether a sweep made a file or folder of that name: a cell's, or what is beside one."""
    commands = "|".join(command.name for command in COMMANDS.values() if command.swept)
    return bool(re.fullmatch(rf"\.?({commands})(-.*)?-[0-9a-f]{{8}}(\..*)?", name))


def look(cells: Sequence[Cell], out: Path) -> Sweep:
    """Read the state of a sweep, and remove what killed runs left behind.

    A run whose inputs have changed stays until a new one replaces it.
    """
    for part in (CELLS, FAILED):
        prepare(out / part)
    for cell in cells:
        recover(out / CELLS / cell.name)
    for left_behind in (out / CELLS).glob(".*"):
        if is_ours(left_behind.name):
            shutil.rmtree(left_behind, ignore_errors=True)
    runs = {cell: run for cell in cells if (run := finished(out, cell))}
    left = {f"{cell.name}.txt": cell for cell in cells if cell not in runs}
    errors = {}
    for note in (out / FAILED).iterdir():
        if not is_ours(note.name) or not note.is_file():
            continue
        if note.name in left:
            errors[left[note.name]] = note.read_text(encoding="utf-8", errors="replace").strip()
        else:
            note.unlink(missing_ok=True)
    return Sweep(out, cells, runs, errors)


def complete(sweep: Sweep, runner: Runner, quiet: bool) -> None:
    """Run the unfinished cells, and add their outcomes to the sweep."""
    left = [cell for cell in sweep.cells if cell not in sweep.runs]
    total, running, failed = len(sweep.cells), 0, 0
    ended, events = total - len(left), runner(left, sweep.out)
    with bar(total, "Cells", quiet, initial=ended) as progress:
        while True:
            with progress.within():  # a cell that runs here moves the bar
                event = next(events, None)
            if event is None:
                break
            if isinstance(event, Done):
                line = _take(sweep, event)
                failed += event.cell in sweep.errors
                ended += 1
                progress.reach(ended)
                if not quiet and not drawn():
                    sys.stderr.write(f"{len(sweep.runs)} of {total} done: {line}\n")
            else:
                running = event
            progress.set_postfix(running=running, failed=failed)


def run_cell(cell: Cell, out: Path, session: Session | None = None) -> Done:
    """Run one cell here, unless it is finished: Ray may retry a cell that has ended."""
    start = time.monotonic()
    run, error = finished(out, cell), None
    if run is not None:
        return Done(cell, None, 0.0, run)
    place = partial(out, cell)
    try:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        if cell.inputs:
            write_text(place / INPUTS, json.dumps(dict(cell.inputs), indent=1) + "\n")
        settings = COMMANDS[cell.command].in_full(dict(cell.settings))
        run_job(cell.command, settings, str(place), session or Session(quiet=True))
        replace_folder(out / CELLS / cell.name, place)
        run = finished(out, cell)
        error = None if run else "it left no readable run folder"
    except MechheadsError as problem:
        error = str(problem)
    except Exception as problem:  # one cell's bug must not stop the others
        error = describe(problem)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return Done(cell, error and " ".join(error.split()), time.monotonic() - start, run)


def partial(out: Path, cell: Cell) -> Path:
    """The folder of a cell while it runs."""
    return out / CELLS / f".{cell.name}"


def describe(problem: BaseException) -> str:
    """An exception in one line, with its location."""
    where = traceback.extract_tb(problem.__traceback__)[-1:]
    places = "".join(f" ({Path(w.filename).name}:{w.lineno})" for w in where)
    return " ".join(f"{type(problem).__name__}: {problem}{places}".split())


def in_order(cells: list[Cell], _: Path) -> Iterator[Cell]:
    """Every cell in its turn."""
    return iter(cells)


def here(
    threads: int | None = None, turns: Callable[[list[Cell], Path], Iterator[Cell]] = in_order
) -> Runner:
    """Run cells in this process, one by one, with this many threads; models stay loaded."""

    def runner(cells: list[Cell], out: Path) -> Iterator[Done | int]:
        from mechheads.models.devices import with_threads

        session = Session(ModelCache(), quiet=True)
        with with_threads(threads):
            for cell in turns(cells, out):
                yield 1
                yield run_cell(cell, out, session)

    return runner


def record(out: Path, done: Done, log: str = LOG) -> str:
    """Record a cell's error, or clear its earlier one; returns its line in the log."""
    note = out / FAILED / f"{done.cell.name}.txt"
    state = f"failed: {done.error}" if done.error else "done"
    line = f"{done.cell.name} {done.seconds:.1f} s {state}"
    try:
        if done.error:
            write_text(note, f"{done.error}\n")
        else:
            note.unlink(missing_ok=True)
        with (out / log).open("a", encoding="utf-8") as stream:
            stream.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n")
    except OSError as error:
        raise MechheadsError(f"cannot write to {out} ({error.strerror}).") from None
    return line


def _take(sweep: Sweep, done: Done) -> str:
    """Add a cell's outcome; if it cannot be recorded (e.g. the disk is full), the cell failed."""
    error, run = done.error, done.run
    try:
        line = record(sweep.out, done, sweep.log)
    except MechheadsError as problem:
        error = error or str(problem)
        line = f"{done.cell.name} failed: {error}"
    sweep.errors.pop(done.cell, None)
    if error:
        sweep.errors[done.cell] = error
    elif run:
        sweep.runs[done.cell] = run
    return line


def _inputs(place: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError, RecursionError):
        found = json.loads((place / INPUTS).read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    return {}
