"""Command `bench`: how fast are we, and what do the methods find where the heads are known?"""

from typing import Literal

from mechheads.benchmarks.bench import run_bench
from mechheads.cli.main import run
from mechheads.jobs.run import Finished


def bench(
    what: Literal["speed", "peers", "size", "known", "startup", "estimate", "sweep"] = "speed",
    *,
    shape: str | None = None,
    threads: str = "1,2",
    first: str = "10,1",
    rows: int = 16,
    length: int = 16,
    loops: int = 24,
    cells: int = 8,
    with_: str | None = None,
    record: str | None = None,
    backend: Literal["hooked", "bridge"] | None = None,
    quiet: bool = False,
    json: bool = False,
) -> Finished:
    """Measure how fast we are, beside TransformerLens's own loop or beside other tools.

    `bench` or `bench speed` times patching, curves, attribution and answers. The floor is the time
    the necessary operations would take at the speed of one large matrix product. Takes about 6
    minutes. `bench peers` times patching, attribution, the whole of discover and gating beside
    TransformerLens 3 and 4 and nnsight, in one run. `bench size` doubles heads, prompts, length,
    layers and width, and prints how time and memory grow. The models have random weights, and for
    speed and peers the shapes of real ones; who runs the whole model for every head is timed on a
    sample of them.

    Args:
        what: speed, peers or size; known (which heads every method finds on the models whose heads
            are known); startup (the CPU seconds of every stage from the shell to a loaded mini);
            estimate (how long discover is estimated to take, beside the CPU seconds it takes); or
            sweep (equal cells on Ray, with one worker and with two). --what may be left out
        shape: gpt2, smollm2, mini, or several separated by commas; default: all. Peers: gpt2 and
            mini
        threads: numbers of CPU threads to time with
        first: positions (BOS is 0) from which clean and corrupted prompts differ; peers takes the
            first of them
        rows: number of prompt pairs
        length: tokens per prompt
        loops: number of heads and curve points to time others on; 0 for all
        cells: number of cells of the sweep
        with_: for peers, Python interpreters whose environments have other versions of
            TransformerLens, or nnsight, separated by commas
        record: for peers and size, a folder; its peers.csv or size.csv gets the results, in place
            of those of the same release and machine. Results are kept in
            mechheads/benchmarks/results/RELEASE
        backend: hooked or bridge (TransformerLens 4 has only the latter); default: hooked
        quiet: print no notices
        json: print one JSON object (headline, warnings, folder) instead of text
    """
    return run_bench(locals())


if __name__ == "__main__":
    run(bench)
