"""A whole sweep: read the grid, run the cells that are left, write the overview."""

import shlex
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mechheads.errors import MechheadsError
from mechheads.jobs.run import Finished, print_json
from mechheads.options import flag_of, read_list, read_path
from mechheads.packages import check_not_hidden
from mechheads.progress import say
from mechheads.runs.files import InUse, alone, prepare
from mechheads.runs.locks import together

if TYPE_CHECKING:
    from .cells import Runner, Sweep
    from .grid import Cell

SLURM = "slurm"  # as --cluster
MOST = 10_000  # CPUs or GPUs per cell; NaN fails the comparison too
AXES = ("tasks", "models", "methods")
GRID = ("commands", *AXES, "seeds", "config", "cpus")


def run_sweep(given: Mapping[str, Any]) -> Finished:
    """Run the unfinished cells; an error at the end names those that failed."""
    check_not_hidden()
    cluster, cpus = given["cluster"], given["cpus"]
    given = {**given, "cpus": cpus or (1.0 if cluster else None)}
    check(given)
    cells = read_cells(given)
    folder = prepare(read_path(given["out"], "--out"))
    start = time.monotonic()
    way = _on_slurm if cluster == SLURM else _as_shard if given["shard"] else _alone
    ended = way(cells, folder, given)
    swept, page, trouble = ended.sweep, ended.page, ended.trouble
    failed = [f"{c.command} {c.label}: {error.rstrip('.')}" for c, error in swept.errors.items()]
    done, spent = len(swept.runs), time.monotonic() - start
    shard = f" of shard {given['shard']}" if given["shard"] else ""
    sentence = f"{done} of {len(swept.cells)} cells{shard} done in {spent:.0f} s.{ended.note}"
    if given["json"]:
        headline = {"cells": len(swept.cells), "done": done, "failed": len(failed)}
        headline |= {"job": ended.job} if ended.job else {}
        print_json("sweep", headline, [*failed, *([trouble] if trouble else [])], folder, sentence)
    else:
        print(sentence)
        print(page)
    if failed:
        listed = "; ".join(failed[:3])
        count = f"{len(failed)} of {len(swept.cells)}"
        raise MechheadsError(f"{count} cells failed ({listed}). See {page}.")
    if trouble:
        raise MechheadsError(trouble)
    return Finished(swept, folder)


@dataclass(frozen=True)
class Ended:
    """A sweep's outcome, its overview, and why that could not be written, if so.

    `job` is that of a sweep which still runs.
    """

    sweep: "Sweep"
    page: Path
    trouble: str = ""
    note: str = ""
    job: str = ""


def _alone(cells: "list[Cell]", folder: Path, given: Mapping[str, Any]) -> Ended:
    """Run all cells in this process, or on a Ray cluster."""
    from .cells import complete, look
    from .inputs import with_inputs
    from .shards import gather_logs

    runner = choose_runner(given)
    with alone(folder):
        gather_logs(folder)
        swept = look(with_inputs(cells), folder)
        try:
            complete(swept, runner, given["quiet"])
        finally:
            page, trouble = _overview(swept, command_line(given), given["quiet"])
    return Ended(swept, page, trouble)


def _as_shard(cells: "list[Cell]", folder: Path, given: Mapping[str, Any]) -> Ended:
    """Run a share of the cells beside other processes; the last one writes the overview."""
    from .cells import INDEX, complete, here
    from .inputs import with_inputs
    from .shards import PATIENCE, look_at, read_shard, take_over, unclaimed

    share, cpus = read_shard(given["shard"]).of(cells), given["cpus"]
    runner = here(max(1, int(cpus)) if cpus else None, unclaimed)
    try:
        with together(folder, PATIENCE):
            swept = look_at(with_inputs(share), folder)
            complete(swept, runner, given["quiet"])
            take_over(swept)
    finally:
        gathered = _gather(cells, folder, given)
    if gathered is not None:
        return Ended(swept, gathered.page, gathered.trouble)
    return Ended(swept, folder / INDEX, note=" The shard that ends last writes the overview.")


def _gather(
    cells: "list[Cell]", folder: Path, given: Mapping[str, Any], wait: float = 0.0
) -> Ended | None:
    """Write the overview, unless another process writes to the folder for longer than `wait`."""
    from .cells import look
    from .inputs import with_inputs
    from .shards import gather_logs

    with suppress(InUse), alone(folder, wait):
        gather_logs(folder)
        swept = look(with_inputs(cells), folder)
        return Ended(swept, *_overview(swept, command_line(given), given["quiet"]))
    return None


def _on_slurm(cells: "list[Cell]", folder: Path, given: Mapping[str, Any]) -> Ended:
    """Submit a job array of shards, wait for it unless told otherwise, and write the overview."""
    from . import slurm
    from .cells import INDEX, look
    from .inputs import with_inputs
    from .shards import PATIENCE, gather_logs

    with alone(folder):
        gather_logs(folder)
        swept = look(with_inputs(cells), folder)
        if len(swept.runs) == len(cells):
            return Ended(swept, *_overview(swept, command_line(given), given["quiet"]))
    array = slurm.submit(swept, words_of(given), given)
    if given["no_wait"]:
        job, tasks = array.job, len(array.indices)
        note = (
            f" Slurm's job {job} runs the others in {tasks} tasks (see `squeue -j {job}`). The "
            "task that ends last writes the overview."
        )
        swept.errors.clear()  # of earlier attempts
        return Ended(swept, folder / INDEX, note=note, job=array.job)
    say(f"Slurm's job {array.job} runs {len(array.indices)} tasks ...", given["quiet"])
    try:
        states = slurm.wait(array, swept, given["quiet"])
    except BaseException:
        slurm.cancel(array)
        raise
    with alone(folder, PATIENCE):
        gather_logs(folder)
        swept = look(with_inputs(cells), folder)
        slurm.blame(swept, array, states)
        return Ended(swept, *_overview(swept, command_line(given), given["quiet"]))


def check(given: Mapping[str, Any]) -> None:
    """Raise an error if the flags for CPUs, GPUs or the cluster are invalid."""
    cpus, gpus = given["cpus"], given["gpus"]
    if not 0 < (1 if cpus is None else cpus) < MOST or not 0 <= gpus < MOST:
        raise MechheadsError(f"--cpus takes more than 0, --gpus 0 or more; got {cpus} and {gpus}.")
    if given["split_layers"] and not given["cluster"]:
        raise MechheadsError("--split-layers needs --cluster: it shares a cell among workers.")
    if given["shard"] is not None:
        from .shards import read_shard

        read_shard(given["shard"])
        if given["cluster"]:
            raise MechheadsError("--shard and --cluster cannot be combined. Use one.")
    if given["cluster"] == SLURM:
        from .slurm import check as check_slurm

        check_slurm(given)
        return
    for name in ("partition", "time", "jobs", "no_wait"):
        if given[name] is not None and given[name] is not False:
            raise MechheadsError(f"{flag_of(name)} needs --cluster slurm.")


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
    for flag, value in _grid(given):
        words += [flag, value]
    return shlex.join(words)


def words_of(given: Mapping[str, Any]) -> list[str]:
    """The arguments with which Python runs the same grid."""
    return ["-m", "mechheads.sweep", *(f"{flag}={value}" for flag, value in _grid(given))]


def _grid(given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The flags that make the cells what they are."""
    for name, value in ({name: given[name] for name in GRID} | given["options"]).items():
        if value:
            yield flag_of(name), f"{value:g}" if isinstance(value, float) else str(value)


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
