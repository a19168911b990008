"""What tests of sweeps share: small settings, a toy command, digests, runs made by hand."""

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
SEEDS = 80
# A sweep with a command whose cells take no time, but for the folder.
TOY = """
import contextlib, signal, sys, time, types
from mechheads.cli.commands import COMMANDS, Command
from mechheads.cli.main import run
from mechheads.jobs import run as jobs
from mechheads.runs.files import write_text
from mechheads.sweep import sweep
from mechheads.sweeping import grid, overview

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a background job

class Toy:
    warnings = ()

    def __init__(self, seed):
        self.seed, self.headline = seed, {"seed": seed}

    def report(self, place, record):
        for i in range(4):
            write_text(place / f"part{i}.csv", f"a,b\\n{self.seed},{i}\\n" * 2000)
            print("begun", file=sys.__stdout__, flush=True)
            time.sleep(0.01)

def toy(*, seed: int = 0, out: str = "runs", quiet: bool = False): ...

def prepare(settings, quiet):
    return jobs.Job(["toy"], [], settings, lambda session: jobs.Measured(Toy(settings["seed"]), {}))

class Ready:  # what a real job imports takes seconds, and these cells none
    keep_freed_memory = staticmethod(lambda: None)
    with_threads = staticmethod(contextlib.nullcontext)

for name, content in (("toy", toy), ("jobs.toy", prepare)):
    sys.modules[f"mechheads.{name}"] = module = types.ModuleType(name)
    setattr(module, content.__name__, content)
for name in ("load", "devices"):
    sys.modules[f"mechheads.models.{name}"] = Ready
COMMANDS["toy"] = Command("toy", "a toy", swept=True)
jobs.JOBS["toy"] = "toy"
grid.AXES["toy"] = {"seed": "seed"}
overview.DRAWINGS["toy"] = overview.Drawing("no.csv", "a", ("b",), ("a", "b"), ("seed",))
run(sweep)
"""


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
