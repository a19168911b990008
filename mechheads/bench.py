"""Verb `bench`: how much faster than TransformerLens's own loop."""

from .cli import run


def bench(
    *,
    shape: str = "gpt2,smollm2",
    threads: str = "1,2",
    first: str = "10,1",
    rows: int = 16,
    length: int = 16,
    per_layer: int | None = None,
    quiet: bool = False,
) -> None:
    """Time the effect of every head, by TransformerLens's loop and by ours, side by side.

    Models have random weights in the shape of real ones. The floor is the time of the operations
    that must be done, at the speed of one large matrix product. With all heads, both shapes and
    both numbers of threads it takes about 10 minutes.

    Args:
        shape: gpt2, smollm2 or both
        threads: numbers of CPU threads to time with
        first: positions (of the BOS token: 0) from which clean and corrupted prompts differ
        rows: pairs of prompts
        length: tokens of a prompt
        per_layer: time only so many heads of each layer; default: all
        quiet: no notices
    """
    from .errors import MechheadsError, unknown
    from .prompts import read_list
    from .shapes import SHAPES

    # What can be wrong is looked at before torch is imported.
    names = read_list(shape, str, "--shape")
    counts = read_list(threads, int, "--threads")
    positions = read_list(first, int, "--first")
    for name in names:
        if name not in SHAPES:
            raise unknown("shape", name, SHAPES)
    sizes = {"--threads": min(counts), "--rows": rows, "--per-layer": per_layer or 1}
    for flag, size in sizes.items():
        if size < 1:
            raise MechheadsError(f"{flag} takes 1 or more, got {size}.")
    for position in positions:
        if not 1 <= position < length <= 64:
            raise MechheadsError(
                f"--first {position} with --length {length}: prompts have up to 64 tokens, and can "
                "differ from position 1 to their last."
            )
    from .benchmark import compare
    from .display import print_timings

    timings = [
        timing
        for name in names
        for count in counts
        for timing in compare(
            name, count, positions, rows=rows, length=length, per_layer=per_layer, quiet=quiet
        )
    ]
    print_timings(timings)


if __name__ == "__main__":
    run(bench)
