"""Verb `verify`: does a saved run give the same numbers again?"""

from .cli import run


def verify(folder: str, *, tolerance: float = 1e-4, quiet: bool = False) -> None:
    """Run the settings of a run folder again and compare the numbers: same, close, or different.

    The exit code is 0 if all numbers are the same or within the tolerance, else 2.

    Args:
        folder: the folder of a run
        tolerance: the largest difference that counts as close, relative to a column's largest value
        quiet: no notices and no progress bar
    """
    from pathlib import Path

    from .verification import repeat

    print(repeat(Path(folder).expanduser(), tolerance, quiet))


if __name__ == "__main__":
    run(verify)
