"""Verb `sweep`: a grid of runs that survives being stopped, here or on a Ray cluster."""

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from mechheads.cli.parse import run
from mechheads.errors import MechheadsError
from mechheads.options import read_list

if TYPE_CHECKING:
    from mechheads.sweeping.cells import Sweep


MOST = 10_000  # CPUs or GPUs of a cell; not a number is not below it


def sweep(
    *,
    verbs: str | None = None,
    tasks: str = "",
    models: str = "",
    methods: str = "",
    seeds: str = "",
    config: str | None = None,
    cluster: str | None = None,
    cpus: float | None = None,
    gpus: float = 0.0,
    split_layers: bool = False,
    out: str = "runs/sweep",
    quiet: bool = False,
    **options: str,
) -> None:
    """Run every combination of tasks, models, methods and seeds, and write one overview.

    Run it again to go on where it was stopped: finished cells are not run again unless a task file
    or a model's files have changed, failed ones are. A cell that fails does not stop the others;
    then the exit code is 2. Other flags go to the verbs that have them (--n 16, --signed), and to
    their tasks and methods (--shots 2, --steps 5). The last line is the overview.

    Args:
        verbs: discover, gate, mask, prefix, compare, or a comma list of them; default: discover
        tasks: a comma list; default: each verb's own
        models: a comma list; compare takes two
        methods: a comma list, for verbs that rank heads
        seeds: a comma list of seeds to start from; gate's number of fits, its own --seeds, can be
            set in a TOML file only (seeds = 5)
        config: a TOML file with a [[grid]] table for each part, instead of these
        cluster: local, or the address of a Ray cluster; default: in this process
        cpus: CPUs and threads of each cell; default: 1 on a cluster, all in this process. The same
            number gives the same bytes
        gpus: GPUs of each cell on a cluster
        split_layers: share the layers of one discover cell among the workers: its patching, not
            its curve
        out: the folder of the sweep
        quiet: no notices and no progress bar
        options: flags of the verbs
    """
    command = _command(locals() | {"cpus": cpus or (1.0 if cluster else None)})
    from mechheads.runs.files import prepare
    from mechheads.sweeping import grid

    if not 0 < (1 if cpus is None else cpus) < MOST or not 0 <= gpus < MOST:
        raise MechheadsError(f"--cpus takes more than 0, --gpus 0 or more, got {cpus}, {gpus}.")
    if split_layers and not cluster:
        raise MechheadsError("--split-layers needs --cluster: there are no workers to share them.")
    if config:
        if verbs or tasks or models or methods or seeds or options:
            raise MechheadsError("--config brings its own grid. Leave the other flags out.")
        cells = grid.from_file(config)
    else:
        axes = {"tasks": tasks, "models": models, "methods": methods}
        lists = {key: read_list(text, str, f"--{key}") for key, text in axes.items() if text}
        numbers = {"seeds": read_list(seeds, int, "--seeds")} if seeds else {}
        listed = read_list(verbs or "discover", str, "--verbs")
        cells = grid.from_flags(listed, lists | numbers, options)
    folder = prepare(Path(out).expanduser())
    from mechheads.sweeping.cells import alone, complete, here, look
    from mechheads.sweeping.inputs import with_inputs

    if cluster:
        from mechheads.sweeping.cluster import on_cluster

        runner = on_cluster(cluster, cpus or 1.0, gpus, split_layers)
    else:
        runner = here(max(1, int(cpus)) if cpus else None)
    start = time.monotonic()
    with alone(folder):
        swept = look(with_inputs(cells), folder)
        try:
            complete(swept, runner, quiet)
        finally:
            page, trouble = _overview(swept, command, quiet)
    failed = [f"{c.verb} {c.label}: {error.rstrip('.')}" for c, error in swept.errors.items()]
    spent = time.monotonic() - start
    print(f"{len(cells) - len(failed)} of {len(cells)} cells done in {spent:.0f} s.")
    print(page)
    if failed:
        listed = "; ".join(failed[:3])
        raise MechheadsError(f"{len(failed)} of {len(cells)} cells failed ({listed}). See {page}.")
    if trouble:
        raise MechheadsError(trouble)


def flags() -> list[str]:
    """The names of all flags of the verbs that can be swept, and of their tasks and methods."""
    from mechheads.sweeping.grid import AXES, options, parameters

    return sorted({n.rstrip("_") for verb in AXES for n in (*parameters(verb), *options(verb))})


def main() -> NoReturn:
    """The command line; switches of the verbs need no value, as they do not there."""
    from mechheads.sweeping.grid import AXES, parameters

    switches = {
        f"--{name.replace('_', '-')}"
        for verb in AXES
        for name, p in parameters(verb).items()
        if p.annotation is bool
    }
    words = sys.argv[1:]
    for i, (word, after) in enumerate(zip(words, [*words[1:], "--"], strict=True)):
        if word.replace("_", "-") in switches and after.startswith("--"):
            sys.argv[i + 1] = f"{word}=true"
    run(sweep, None, flags)


def _overview(swept: "Sweep", command: str, quiet: bool) -> tuple[Path, str]:
    """The overview, and why it could not be written if so: a full disk is no reason to crash."""
    from mechheads.sweeping.cells import INDEX
    from mechheads.sweeping.overview import mixture, write_overview

    if (warning := mixture(swept)) and not quiet:
        sys.stderr.write(f"{warning}\n")
    try:
        return write_overview(swept, command), ""
    except MechheadsError as error:
        return swept.out / INDEX, str(error)


def _command(given: Mapping[str, Any]) -> str:
    import shlex

    words = ["python", "-m", "mechheads.sweep"]
    names = ("verbs", "tasks", "models", "methods", "seeds", "config", "cpus")
    for name, value in ({name: given[name] for name in names} | given["options"]).items():
        if value:
            shown = f"{value:g}" if isinstance(value, float) else str(value)
            words += [f"--{name.replace('_', '-')}", shown]
    return shlex.join(words)


if __name__ == "__main__":
    main()
