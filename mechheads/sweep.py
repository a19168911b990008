"""Command `sweep`: a resumable grid of runs, here or on a Ray or Slurm cluster."""

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
    partition: str | None = None,
    time: str | None = None,
    jobs: int | None = None,
    no_wait: bool = False,
    shard: str | None = None,
    out: str = "runs/sweep",
    quiet: bool = False,
    json: bool = False,
    **options: str,
) -> Finished:
    """Run every combination of tasks, models, methods and seeds, and write one overview.

    Run it again to resume where it stopped: finished cells are skipped unless a file that they read
    (a task's, a model's) has changed, and failed cells are retried. A failed cell does not stop the
    others, but the exit code is then 2. Other flags go to the commands that have them (--n 16,
    --signed), and to their tasks and methods (--shots 2, --steps 5). The path of the overview is
    printed last.

    Args:
        commands: comma-separated: discover, gate, mask, prefix, compare; default: discover
        tasks: a comma-separated list; default: each command's own
        models: a comma-separated list; compare takes two
        methods: a comma-separated list, for commands that rank heads
        seeds: a comma-separated list of random seeds; gate's own --seeds, its number of fits, can
            only be set in a TOML file (seeds = 5)
        config: a TOML file with one or more [[grid]] tables, instead of the flags above
        cluster: local, or the address of a Ray cluster, or slurm (from a login node); default: run
            in this process
        cpus: CPUs and threads per cell; default: 1 on a cluster, all in this process. The same
            number gives identical bytes
        gpus: GPUs per cell on a cluster
        split_layers: share the patching and the curve of each discover cell of --methods patch
            among the workers
        partition: Slurm's partition; other options of sbatch are taken from its environment
            variables (SBATCH_ACCOUNT)
        time: the limit of each of Slurm's tasks: 01:30:00
        jobs: into how many tasks of a Slurm job array to divide the cells; default: one per cell,
            up to 100
        no_wait: submit the job to Slurm and end; by default the sweep waits, and cancels the job
            when it is stopped
        shard: 3/16: run only the third of 16 equal shares of the cells; others may run at the same
            time, here or on any machine that sees the folder. The last one writes the overview
        out: the sweep's folder
        quiet: print no notices and show no progress bar
        json: print one JSON object (headline, warnings, folder) instead of text
        options: flags of the commands
    """
    return run_sweep(locals())


if __name__ == "__main__":
    run(sweep)
