"""Verifies a run folder, or every cell of a sweep."""

from pathlib import Path

from mechheads.errors import MechheadsError
from mechheads.jobs.run import Finished, print_json
from mechheads.packages import check_not_hidden


def verify_folder(folder: str, tolerance: float, quiet: bool, json: bool) -> Finished:
    """Print how every table compares; raise an error if a number differs."""
    check_not_hidden()
    if not 0 <= tolerance < float("inf"):
        raise MechheadsError(f"--tolerance takes 0 or more, got {tolerance}.")
    from mechheads.sweeping.cells import is_sweep

    from .rerun import verify_run, verify_sweep

    path = Path(folder).expanduser()
    lines = verify_sweep if is_sweep(path) else verify_run
    said = []
    for line in lines(path, tolerance, quiet):
        said.append(line)
        if not json:
            print(line, flush=True)
    if json:
        print_json("verify", {"lines": said}, [], path, said[-1])
    return Finished(said, path)
