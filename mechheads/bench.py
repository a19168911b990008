"""Command `bench`: how fast are we, and what do the methods find where the heads are known?"""

from typing import Literal

from mechheads.benchmarks.bench import run_bench
from mechheads.cli.main import run
from mechheads.jobs.run import Finished


def bench(
    *,
    shape: str = "gpt2,smollm2,mini",
    threads: str = "1,2",
    first: str = "10,1",
    rows: int = 16,
    length: int = 16,
    loops: int = 24,
    sweep: int = 0,
    known: bool = False,
    startup: bool = False,
    estimate: bool = False,
    backend: Literal["hooked", "bridge"] | None = None,
    quiet: bool = False,
    json: bool = False,
) -> Finished:
    """Time the patching of every head: TransformerLens's loop and ours, side by side.

    The models have random weights and the shapes of real ones. The floor is the time the necessary
    operations would take at the speed of one large matrix product. TransformerLens's loop runs the
    whole model for every head, so it is timed on a sample of them. Takes about 6 minutes.

    Args:
        shape: gpt2, smollm2, mini, or several separated by commas
        threads: numbers of CPU threads to time with
        first: positions (BOS is 0) from which clean and corrupted prompts differ
        rows: number of prompt pairs
        length: tokens per prompt
        loops: number of heads and curve points to time TransformerLens's loop on; 0 for all
        sweep: only time a sweep of this many equal cells on Ray, with one worker and with two, and
            report the fastest of three rounds each
        known: instead of timing, print which heads every method finds on the models whose heads are
            known (known/induction and the others)
        startup: instead of timing, print the CPU seconds of every stage (Python, each library, the
            model) from the shell to a loaded mini
        estimate: instead of timing, print how long discover is estimated to take on mini and, if it
            was fetched, smollm2, beside the CPU seconds that it takes (one thread)
        backend: hooked or bridge (TransformerLens 4 has only the latter); default: hooked
        quiet: print no notices
        json: print one JSON object (headline, warnings, folder) instead of text
    """
    return run_bench(locals())


if __name__ == "__main__":
    run(bench)
