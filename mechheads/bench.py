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
    from .benchmark import compare
    from .display import print_timings
    from .errors import MechheadsError
    from .prompts import read_list

    positions = read_list(first, int, "--first")
    for position in positions:
        if not 1 <= position < length:
            raise MechheadsError(
                f"--first {position}: prompts of {length} tokens can differ from position 1 to "
                f"{length - 1}."
            )
    timings = [
        timing
        for name in read_list(shape, str, "--shape")
        for count in read_list(threads, int, "--threads")
        for timing in compare(
            name, count, positions, rows=rows, length=length, per_layer=per_layer, quiet=quiet
        )
    ]
    print_timings(timings)


if __name__ == "__main__":
    run(bench)
