"""Verifies a run folder, or every cell of a sweep."""

from collections.abc import Mapping
from typing import Any

from mechheads.errors import MechheadsError, printable
from mechheads.jobs.run import Finished, print_json
from mechheads.options import read_path
from mechheads.packages import check_not_hidden


def verify_folder(given: Mapping[str, Any]) -> Finished:
    """Print how every table compares; raise an error if a number differs."""
    check_not_hidden()
    tolerance, quiet, json = (given[name] for name in ("tolerance", "quiet", "json"))
    if not 0 <= tolerance < float("inf"):
        raise MechheadsError(f"--tolerance takes 0 or more, got {tolerance}.")
    from mechheads.sweeping.cells import is_sweep

    from .rerun import verify_run, verify_sweep
    from .trust import Allowed

    path = read_path(given["folder"], "the folder")
    names = ("allow_files", "allow_hub", "comet_command", "device")
    allowed = Allowed(*(given[name] for name in names))
    lines = verify_sweep if is_sweep(path) else verify_run
    said, failed = [], None
    try:
        for line in lines(path, tolerance, allowed, quiet):
            said.append(line)
            if not json:
                print(printable(line), flush=True)  # it has names from the folder
    except MechheadsError as error:
        failed = error
    if json:
        told = [] if failed is None else [str(failed)]
        headline = {"same": failed is None, "lines": said}
        print_json("verify", headline, told, path, [*said, *told][-1])
    if failed is not None:
        raise failed
    return Finished(said, path)
