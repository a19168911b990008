"""Verb `verify`: does a saved run give the same numbers again?"""

from mechheads.cli.parse import run
from mechheads.errors import MechheadsError


def verify(folder: str, *, tolerance: float = 1e-4, quiet: bool = False) -> None:
    """Run the settings of a run folder again and compare the numbers: same, close, or different.

    The folder of a sweep gives a line for each of its cells. As many threads are used as the run
    had: then the same machine gives the same numbers. The exit code is 0 if all are the same or
    within the tolerance, else 2.

    Args:
        folder: the folder of a run, or of a sweep that has ended
        tolerance: the largest difference that counts as close, relative to a column's largest value
        quiet: no notices and no progress bar
    """
    from pathlib import Path

    from mechheads.sweeping.cells import is_sweep
    from mechheads.verifying.rerun import verify_run, verify_sweep

    if not 0 <= tolerance < float("inf"):
        raise MechheadsError(f"--tolerance takes 0 or more, got {tolerance}.")
    path = Path(folder).expanduser()
    if is_sweep(path):
        for line in verify_sweep(path, tolerance, quiet):
            print(line, flush=True)
    else:
        print(verify_run(path, tolerance, quiet))


if __name__ == "__main__":
    run(verify)
