"""Verb `compare`: how many heads two models need for the same tasks."""

import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mechheads.cli.parse import run
from mechheads.discover import check, make_prompts
from mechheads.errors import MechheadsError
from mechheads.models import locate
from mechheads.options import read_list
from mechheads.progress import say
from mechheads.runs import folder as runs

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
    n_devices: int = 1,
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
        method: patch, attribution, ig, hybrid, path, direct or gating
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
        n_devices: GPUs to spread the layers over
        budget: tokens per pass, which bounds memory; default: what suits the device
        quiet: no notices and no progress bar
    """
    settings = runs.settings_of(locals())
    names, pair = read_list(tasks, str, "--tasks"), (standard, sparse)
    saved = check_sides(pair, names, settings, quiet)
    if saved:
        # The runs bring everything else.
        settings = {"standard": standard, "sparse": sparse, "threshold": threshold}
    folder = runs.folder_for(out, ["compare", standard, sparse], settings)
    say(f"Loading {standard}, {sparse} ...", quiet)
    from circuits import comparison
    from circuits.curve import check_draws
    from circuits.report import write_comparison
    from circuits.search import check_search
    from mechheads.reports.run import REPORT

    check_search("top", threshold)
    check_draws(draws)
    start = time.monotonic()
    sides = [_saved(name) if saved else _run(name, names, settings, quiet) for name in pair]
    found = comparison.compare(sides[0][0], sides[1][0], threshold)
    parts = {t.task: {"heads": asdict(t.heads), "edges": asdict(t.edges)} for t in found.tasks}
    origin = {"standard": sides[0][1], "sparse": sides[1][1]}
    record = runs.Record("compare", settings, {"parts": parts}, origin)
    timings = {"seconds": time.monotonic() - start}
    runs.keep(folder, record, timings, lambda place: write_comparison(place, found, record))
    for task in found.tasks:
        heads, edges = task.heads, task.edges
        print(f"{task.task:<16}heads {heads.standard:.0f} and {heads.sparse:.0f}: {heads.words}")
        print(f"{'':<16}edges {edges.standard:.0f} and {edges.sparse:.0f}: {edges.words}")
    warnings = [f"Warning: {task.warning}" for task in found.tasks if task.warning]
    print("\n".join([*warnings, found.sentence, str(folder / REPORT)]))


def check_sides(
    pair: tuple[str, str], names: list[str], settings: dict[str, Any], quiet: bool
) -> bool:
    """Whether these are two saved runs; an error if they are neither runs nor models."""
    saved = [runs.is_run(name) for name in pair]
    if any(saved) and not all(saved):
        raise MechheadsError("Give two models or two run folders, not one of each.")
    if all(saved):
        for name in pair:
            runs.read_run(Path(name).expanduser(), "discover")
        return True
    if len(set(names)) < len(names):
        raise MechheadsError(f"--tasks names a task twice: {','.join(names)}.")
    for name in names:
        check(name, settings["method"], settings["n"], settings["test"], settings["split"], {})
    for name in pair:
        locate.find(name, quiet=quiet)
    return False


def _saved(name: str) -> "tuple[list[Discovery], Mapping[str, Any]]":
    """What a run found, and where its numbers come from."""
    from circuits.discovery import Discovery

    folder = Path(name).expanduser()
    return [Discovery.load(folder)], runs.read_run(folder).provenance


def _run(
    name: str, names: list[str], settings: dict[str, Any], quiet: bool
) -> "tuple[list[Discovery], Mapping[str, Any]]":
    """Every task on a model, and where the numbers come from."""
    from circuits.discovery import discover
    from mechheads.models.load import load
    from mechheads.models.provenance import provenance

    wanted = ("method", "threshold", "signed", "replacement", "draws", "seed", "budget")
    given = {key: settings[key] for key in wanted}
    sizes = {key: settings[key] for key in ("n", "test", "seed", "split")}
    loaded = load(name, quiet=quiet, **{key: settings[key] for key in locate.PLACE})
    prompts = [make_prompts(loaded, task, {}, **sizes) for task in names]
    found = [discover(loaded, a, b, quiet=quiet, **given) for a, b in prompts]
    every = [part for both in prompts for part in both]
    return found, provenance(loaded, locate.find(name, quiet=quiet), every, settings["seed"])


if __name__ == "__main__":
    run(compare)
