"""Command `verify`: does a saved run give the same numbers again?"""

from mechheads.cli.main import run
from mechheads.jobs.run import Finished
from mechheads.verifying.verify import verify_folder


def verify(
    folder: str, *, tolerance: float = 1e-4, quiet: bool = False, json: bool = False
) -> Finished:
    """Rerun a run folder's settings and compare the numbers: identical, close, or different.

    A sweep's folder gives one line per cell. The rerun uses the same number of threads as the run,
    so that the same machine gives the same numbers. The exit code is 0 if everything is identical
    or within the tolerance, otherwise 2.

    Args:
        folder: the folder of a run, or of a finished sweep
        tolerance: the largest difference that counts as close, relative to a column's largest value
        quiet: print no notices and show no progress bar
        json: print one JSON object (headline, warnings, folder) instead of text
    """
    return verify_folder(folder, tolerance, quiet, json)


if __name__ == "__main__":
    run(verify)
