"""Verb `bench`: how much faster than TransformerLens's own loop."""

from mechheads.cli.parse import run


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
) -> None:
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
        quiet: no notices
    """
    from mechheads.errors import MechheadsError, unknown
    from mechheads.models.untrained import SHAPES
    from mechheads.options import read_list

    # What can be wrong is looked at before torch is imported.
    names = read_list(shape, str, "--shape")
    counts = read_list(threads, int, "--threads")
    positions = read_list(first, int, "--first")
    for name in names:
        if name not in SHAPES:
            raise unknown("shape", name, SHAPES)
    sizes = {"--threads": (min(counts), 1), "--rows": (rows, 1)}
    sizes |= {"--loops": (loops, 0), "--sweep": (sweep, 0)}
    for flag, (size, least) in sizes.items():
        if size < least:
            raise MechheadsError(f"{flag} takes {least} or more, got {size}.")
    if not 2 <= length <= 64:
        raise MechheadsError(f"--length takes 2 to 64 tokens, got {length}.")
    for position in positions:
        if not 1 <= position < length:
            raise MechheadsError(
                f"--first takes 1 to {length - 1} with prompts of {length} tokens, got {position}."
            )
    from mechheads.benchmarks.timings import compare
    from mechheads.cli.console import print_timings

    if sweep:
        from mechheads.benchmarks.scaling import compare_workers

        print(compare_workers(sweep, quiet).table)
        return

    for name in names:
        for count in counts:
            given = {"rows": rows, "length": length, "loops": loops, "quiet": quiet}
            print_timings(list(compare(name, count, positions, **given)))
            print(flush=True)


if __name__ == "__main__":
    run(bench)
