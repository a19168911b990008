"""What tests of sweeps share: small settings, digests of a folder, runs made by hand."""

import hashlib
import json
from pathlib import Path
from typing import Any

from mechheads.runs import folder as runs
from mechheads.runs.files import write_text
from mechheads.sweeping.cells import CELLS, INPUTS
from mechheads.sweeping.grid import Cell

ROOT = Path(__file__).parents[2]
SMALL: dict[str, Any] = {"n": "4", "test": "4", "draws": "2"}


def digests(folder: Path) -> dict[str, str]:
    """Every file but the log and the timings."""
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.name not in ("log.txt", "timings.json")
    }


def toy_run(cell: Cell, out: Path) -> Path:
    """A finished run of a cell, by hand."""
    place = out / CELLS / cell.name
    place.mkdir(parents=True)
    if cell.inputs:
        write_text(place / INPUTS, json.dumps(dict(cell.inputs)))
    record = runs.Record(cell.command, dict(cell.settings), {"needed": 1}, {})
    return runs.keep(place / "run", record, {}, lambda folder: None)
