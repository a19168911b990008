"""Verb `sweep`: a grid of runs that survives being stopped, here or on a Ray cluster."""

import time
from pathlib import Path

from .cli import run
from .errors import MechheadsError
from .prompts import read_list


def sweep(
    *,
    verbs: str = "discover",
    tasks: str = "",
    models: str = "",
    methods: str = "",
    seeds: str = "",
    config: str | None = None,
    cluster: str | None = None,
    cpus: float = 1.0,
    gpus: float = 0.0,
    split_layers: bool = False,
    out: str = "runs/sweep",
    quiet: bool = False,
    **options: str,
) -> None:
    """Run every combination of tasks, models, methods and seeds, and write one overview.

    Run it again to go on where it was stopped: finished cells are not run again, failed ones are.
    A cell that fails does not stop the others; then the exit code is 2. Other flags go to the verbs
    that have them (--n 16). The last line is the overview.

    Args:
        verbs: discover, gate, mask, prefix, compare, or a comma list of them
        tasks: a comma list; default: each verb's own
        models: a comma list; compare takes two
        methods: a comma list, for verbs that rank heads
        seeds: a comma list
        config: a TOML file with a [[grid]] table for each part, instead of these
        cluster: local, or the address of a Ray cluster; default: in this process
        cpus: CPUs for each cell on a cluster
        gpus: GPUs for each cell on a cluster
        split_layers: share the layers of one discover cell that patches among the workers
        out: the folder of the sweep
        quiet: no notices and no progress bar
        options: flags of the verbs
    """
    from .outputs import prepare
    from .sweeping import grid

    if cpus <= 0 or gpus < 0:
        raise MechheadsError(f"--cpus takes more than 0 and --gpus 0 or more, got {cpus}, {gpus}.")
    if split_layers and not cluster:
        raise MechheadsError("--split-layers needs --cluster: there are no workers to share them.")
    if config:
        if tasks or models or methods or seeds or options:
            raise MechheadsError("--config brings its own grid. Leave the other flags out.")
        cells = grid.from_file(config)
    else:
        axes = {"tasks": tasks, "models": models, "methods": methods}
        lists = {key: read_list(text, str, f"--{key}") for key, text in axes.items() if text}
        numbers = {"seeds": read_list(seeds, int, "--seeds")} if seeds else {}
        cells = grid.from_flags(read_list(verbs, str, "--verbs"), lists | numbers, options)
    folder = prepare(Path(out).expanduser())
    from .sweeping.cells import here, sweep_cells
    from .sweeping.overview import write_overview

    runner = here
    if cluster:
        from .sweeping.cluster import on_cluster

        runner = on_cluster(cluster, cpus, gpus, split_layers)
    start = time.monotonic()
    failed = sweep_cells(cells, folder, runner, quiet)
    page = write_overview(folder, cells, _command(locals()))
    spent = time.monotonic() - start
    print(f"{len(cells) - len(failed)} of {len(cells)} cells done in {spent:.0f} s.")
    print(page)
    if failed:
        listed = "; ".join(f"{done.cell.label}: {done.error}" for done in failed[:3])
        raise MechheadsError(f"{len(failed)} of {len(cells)} cells failed ({listed}). See {page}.")


def flags() -> list[str]:
    """The names of all flags of the verbs that can be swept."""
    from .sweeping.grid import AXES, parameters

    return sorted({name for verb in AXES for name in parameters(verb)})


def _command(given: dict[str, object]) -> str:
    import shlex

    words = ["python", "-m", "mechheads.sweep"]
    names = ("verbs", "tasks", "models", "methods", "seeds", "config")
    for name in names:
        if given[name]:
            words += [f"--{name}", str(given[name])]
    options = given["options"]
    assert isinstance(options, dict)
    for name, value in options.items():
        words += [f"--{name.rstrip('_').replace('_', '-')}", str(value)]
    return shlex.join(words)


if __name__ == "__main__":
    run(sweep, None, flags)
