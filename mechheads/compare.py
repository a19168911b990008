"""Verb `compare`: how many heads two models need for the same tasks."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from . import runs, sources
from .cli import run
from .discover import check, look, make_prompts
from .errors import MechheadsError
from .progress import say
from .prompts import read_list

if TYPE_CHECKING:
    from circuits.discovery import Discovery


def compare(
    *,
    standard: str = "mini",
    sparse: str = "mini-sparse",
    tasks: str = "greater_than,ioi,docstring,ioi_long,math",
    method: str = "patch",
    n: int | None = None,
    test: int | None = None,
    seed: int = 0,
    split: str = "test",
    threshold: float = 0.9,
    signed: bool = False,
    replacement: Literal["corrupt", "zero", "mean", "position_mean"] = "corrupt",
    draws: int = 10,
    out: str = "runs",
    device: str | None = None,
    dtype: str = "float32",
    budget: int | None = None,
    quiet: bool = False,
) -> None:
    """Compare how many heads two models need to explain the same tasks, or two saved runs.

    Draws a panel per task with both curves, and prints the multiplier N_standard / N_sparse with
    its interval. A run folder is written below --out; the last line is its report.

    Args:
        standard: a model (mini, smollm2, a directory, a hub id), or the folder of a discover run
        sparse: the model to compare it with, or the folder of a discover run
        tasks: a comma list of tasks; runs bring their own
        method: patch, attribution, ig, hybrid, path or direct
        n: prompts that rank the heads; default: 32
        test: prompts that judge; default: 32
        seed: of the prompts and the random rankings
        split: test, train (what our embedded models have seen) or all
        threshold: share of the effect that a circuit must explain
        signed: rank by the signed effect, not by its size
        replacement: corrupt, zero, mean or position_mean, of the heads that are not kept
        draws: random rankings to compare with
        out: the folder that holds run folders
        device: cpu, cuda, cuda:1, mps; default: the best there is
        dtype: float32, float64, bfloat16 or float16
        budget: tokens per pass, which bounds memory; default: what suits the device
        quiet: no notices and no progress bar
    """
    settings = runs.settings_of(locals())
    names, saved = read_list(tasks, str, "--tasks"), runs.is_run(standard)
    if saved != runs.is_run(sparse):
        raise MechheadsError("Give two models or two run folders, not one of each.")
    places = [] if saved else [sources.find(name, quiet=quiet) for name in (standard, sparse)]
    for name in [] if saved else names:
        check(name, method, n, test, split, {})
    for name in (standard, sparse) if saved else ():
        runs.read_run(Path(name).expanduser(), "discover")
    folder = runs.folder_for(out, ["compare", standard, sparse], settings)
    say(f"Loading {standard}, {sparse} ...", quiet)
    from circuits import comparison
    from circuits.discovery import Discovery
    from circuits.report import REPORT, write_comparison

    start = time.monotonic()
    if saved:
        both = [[Discovery.load(Path(name).expanduser())] for name in (standard, sparse)]
        origin = {
            side: runs.read_run(Path(name).expanduser()).provenance
            for side, name in (("standard", standard), ("sparse", sparse))
        }
    else:
        both, origin = _discover(names, places, settings, quiet)
    found = comparison.compare(both[0], both[1], threshold)
    headline: dict[str, Any] = {
        t.task: {"multiplier": t.multiplier, "n_standard": t.n_standard, "n_sparse": t.n_sparse}
        for t in found.tasks
    }
    record = runs.Record("compare", settings, headline, origin)
    timings = {"seconds": time.monotonic() - start}
    runs.keep(folder, record, timings, lambda place: write_comparison(place, found, record))
    for task in found.tasks:
        print(f"{task.task:<16}{task.words}")
    warnings = [f"Warning: {task.warning}" for task in found.tasks if task.warning]
    print("\n".join([*warnings, found.sentence, str(folder / REPORT)]))


def _discover(
    names: list[str], places: list[sources.Source], settings: dict[str, Any], quiet: bool
) -> "tuple[list[list[Discovery]], dict[str, Any]]":
    """Every task on both models, and where the numbers come from."""
    from .models import load
    from .provenance import provenance

    both, origin = [], {}
    wanted = ("method", "threshold", "signed", "replacement", "draws", "seed", "budget")
    given = {name: settings[name] for name in wanted}
    sizes = {name: settings[name] for name in ("n", "test", "seed", "split")}
    for side, source in zip(("standard", "sparse"), places, strict=True):
        loaded = load(source.name, device=settings["device"], dtype=settings["dtype"], quiet=quiet)
        prompts = [make_prompts(loaded, name, {}, **sizes) for name in names]
        both.append([look(loaded, a, b, quiet=quiet, **given) for a, b in prompts])
        every = [part for pair in prompts for part in pair]
        origin[side] = provenance(loaded, source, every, settings["seed"])
    return both, origin


if __name__ == "__main__":
    run(compare)
