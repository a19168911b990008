"""Command `bench`: how much faster are we than TransformerLens's own loop?"""

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
    quiet: bool = False,
    json: bool = False,
) -> Finished:
    """Time the effect of every head, by TransformerLens's loop and by ours, side by side.

    Models have random weights in the shape of real ones. The floor is the time of the operations
    that must be done, at the speed of one large matrix product. TransformerLens's loop runs the
    whole model for every head, and is timed on some of them. It takes about 6 minutes.

    Args:
        shape: gpt2, smollm2, mini, or a comma list of them
        threads: numbers of CPU threads to time with
        first: positions (of the BOS token: 0) from which clean and corrupted prompts differ
        rows: pairs of prompts
        length: tokens of a prompt
        loops: heads and points on which TransformerLens's loop is timed; 0 for all
        sweep: only time a sweep of so many equal cells on Ray, with one worker and with two, the
            fastest of three rounds each
        quiet: print no notices
        json: print one JSON object (headline, warnings, folder) instead of text
    """
    return run_bench(locals())


if __name__ == "__main__":
    run(bench)
