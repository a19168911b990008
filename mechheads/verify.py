"""Command `verify`: does a saved run give the same numbers again?"""

from mechheads.cli.main import run
from mechheads.jobs.run import Finished
from mechheads.verifying.verify import verify_folder


def verify(
    folder: str,
    *,
    tolerance: float = 1e-4,
    allow_files: bool = False,
    allow_hub: bool = False,
    comet_command: str | None = None,
    device: str | None = None,
    quiet: bool = False,
    json: bool = False,
) -> Finished:
    """Rerun a run folder's settings and compare every file: identical, close, or different.

    A folder is data, not a script: only commands that measure are rerun, on embedded or fetched
    models and built-in tasks. Whatever else it names is listed, and used only if you allow it.

    A sweep's folder gives one line per cell. The rerun uses the same number of threads as the run,
    so that the same machine gives the same numbers. The exit code is 0 if everything is identical
    or within the tolerance, otherwise 2.

    Args:
        folder: the folder of a run, or of a finished sweep
        tolerance: the largest difference that counts as close, relative to a column's largest value
        allow_files: use the files (tasks, circuits, effects), model directories and run folders
            that the folder names
        allow_hub: use the hub models that the folder names
        comet_command: the comet-score program, for runs that were scored by COMET
        device: the device to rerun on, for runs that were not on the CPU
        quiet: print no notices and show no progress bar
        json: print one JSON object (headline, warnings, folder) instead of text
    """
    return verify_folder(locals())


if __name__ == "__main__":
    run(verify)
