"""A whole sweep: read the grid, run the cells that are left, write the overview."""

import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mechheads.errors import MechheadsError
from mechheads.jobs.run import Finished, print_json
from mechheads.options import flag_of, read_list, read_path
from mechheads.packages import check_not_hidden
from mechheads.runs.files import alone, prepare

if TYPE_CHECKING:
    from .cells import Runner, Sweep
    from .grid import Cell

MOST = 10_000  # CPUs or GPUs per cell; NaN fails the comparison too
AXES = ("tasks", "models", "methods")
GRID = ("commands", *AXES, "seeds", "config", "cpus")


def run_sweep(given: Mapping[str, Any]) -> Finished:
    """Run the unfinished cells; an error at the end names those that failed."""
    check_not_hidden()
    cluster, cpus = given["cluster"], given["cpus"]
    line = command_line({**given, "cpus": cpus or (1.0 if cluster else None)})
    check(given)
    cells = read_cells(given)
    folder = prepare(read_path(given["out"], "--out"))
    from .cells import complete, look
    from .inputs import with_inputs

    runner, start = choose_runner(given), time.monotonic()
    with alone(folder):
        swept = look(with_inputs(cells), folder)
        try:
            complete(swept, runner, given["quiet"])
        finally:
            page, trouble = _overview(swept, line, given["quiet"])
    failed = [f"{c.command} {c.label}: {error.rstrip('.')}" for c, error in swept.errors.items()]
    done, spent = len(cells) - len(failed), time.monotonic() - start
    sentence = f"{done} of {len(cells)} cells done in {spent:.0f} s."
    if given["json"]:
        headline = {"cells": len(cells), "done": done, "failed": len(failed)}
        print_json("sweep", headline, [*failed, *([trouble] if trouble else [])], folder, sentence)
    else:
        print(sentence)
        print(page)
    if failed:
        listed = "; ".join(failed[:3])
        raise MechheadsError(f"{len(failed)} of {len(cells)} cells failed ({listed}). See {page}.")
    if trouble:
        raise MechheadsError(trouble)
    return Finished(swept, folder)


def check(given: Mapping[str, Any]) -> None:
    """Raise an error if the flags for CPUs, GPUs or the cluster are invalid."""
    cpus, gpus = given["cpus"], given["gpus"]
    if not 0 < (1 if cpus is None else cpus) < MOST or not 0 <= gpus < MOST:
        raise MechheadsError(f"--cpus takes more than 0, --gpus 0 or more; got {cpus} and {gpus}.")
    if given["split_layers"] and not given["cluster"]:
        raise MechheadsError("--split-layers needs --cluster: it splits layers across workers.")


def read_cells(given: Mapping[str, Any]) -> "list[Cell]":
    """The cells of the flags, or of the TOML file."""
    from . import grid

    if given["config"]:
        if given["options"] or any(given[name] for name in ("commands", *AXES, "seeds")):
            raise MechheadsError("--config defines its own grid. Leave out the other grid flags.")
        return grid.from_file(given["config"])
    lists = {name: read_list(given[name], str, flag_of(name)) for name in AXES if given[name]}
    seeds = given["seeds"]
    numbers = {"seeds": read_list(seeds, int, "--seeds")} if seeds else {}
    commands = read_list(given["commands"] or "discover", str, "--commands")
    return grid.from_flags(commands, lists | numbers, given["options"])


def choose_runner(given: Mapping[str, Any]) -> "Runner":
    """A runner in this process, or on a cluster."""
    from .cells import here

    cluster, cpus = given["cluster"], given["cpus"]
    if not cluster:
        return here(max(1, int(cpus)) if cpus else None)
    from .cluster import on_cluster

    return on_cluster(cluster, cpus or 1.0, given["gpus"], given["split_layers"])


def command_line(given: Mapping[str, Any]) -> str:
    """The command that reproduces the sweep."""
    words = ["python", "-m", "mechheads.sweep"]
    for name, value in ({name: given[name] for name in GRID} | given["options"]).items():
        if value:
            shown = f"{value:g}" if isinstance(value, float) else str(value)
            words += [flag_of(name), shown]
    return shlex.join(words)


def _overview(swept: "Sweep", line: str, quiet: bool) -> tuple[Path, str]:
    """The overview's path, and why it could not be written, if so: a full disk must not crash."""
    from .cells import INDEX
    from .overview import mixture, write_overview

    if (warning := mixture(swept)) and not quiet:
        sys.stderr.write(f"{warning}\n")
    try:
        return write_overview(swept, line), ""
    except MechheadsError as error:
        return swept.out / INDEX, str(error)
