"""Command `sweep`: a grid of runs that survives being stopped, here or on a Ray cluster."""

from mechheads.cli.main import run
from mechheads.jobs.run import Finished
from mechheads.sweeping.sweep import run_sweep


def sweep(
    *,
    commands: str | None = None,
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
    json: bool = False,
    **options: str,
) -> Finished:
    """Run every combination of tasks, models, methods and seeds, and write one overview.

    Run it again to go on where it was stopped: finished cells are not run again unless a task file
    or a model's files have changed, failed ones are. A cell that fails does not stop the others;
    then the exit code is 2. Other flags go to the commands that have them (--n 16, --signed), and
    to their tasks and methods (--shots 2, --steps 5). The last line is the overview.

    Args:
        commands: discover, gate, mask, prefix, compare, or a comma list of them; default: discover
        tasks: a comma list; default: each command's own
        models: a comma list; compare takes two
        methods: a comma list, for commands that rank heads
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
        json: print one JSON object (headline, warnings, folder) instead of text
        options: flags of the commands
    """
    return run_sweep(locals())


if __name__ == "__main__":
    run(sweep)
