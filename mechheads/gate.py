"""Verb `gate`: which heads facilitate a task, which interfere, which do not matter."""

import time
from collections.abc import Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mechheads.cli.parse import run
from mechheads.errors import MechheadsError
from mechheads.models import locate
from mechheads.options import read_list
from mechheads.progress import say
from mechheads.prompts import LEAST, check_prompts
from mechheads.runs import folder as runs

if TYPE_CHECKING:
    from mechheads.gating import Recipe
    from mechheads.gating.contrast import Side
    from mechheads.models.model import Model
    from mechheads.prompts import Prompts
    from tasks.contrasts import Format, Plan

UNUSED = ("task", "rates", "k", "points", "no_patching")  # by contrastive gating


def gate(
    *,
    task: str = "syntax",
    model: str = "mini",
    seeds: int = 10,
    n: int | None = None,
    test: int | None = None,
    seed: int = 0,
    split: str = "test",
    lambda_: float = 0.1,
    updates: int = 500,
    rates: str = "0.1,0.01",
    pulled_rates: str = "0.5,0.1",
    batch: int | None = None,
    clip: float = 4.0,
    k: int = 50,
    points: int | None = None,
    no_patching: bool = False,
    retain: str | None = None,
    forget: str | None = None,
    family: str | None = None,
    out: str = "runs",
    device: str | None = None,
    dtype: str = "float32",
    n_devices: int = 1,
    budget: int | None = None,
    quiet: bool = False,
    **options: str,
) -> None:
    """Fit a gate to every head of a model on a task, and say which heads the task needs.

    Three fits per seed: free, pulled open (G+) and pulled shut (G-). Some prompts fit the gates,
    others test them. With lists of tasks and models the report has a panel for each of both. A run
    folder is written below --out; the last line is its report.

    With --retain and --forget gates are fitted instead that keep the answers of one task and lose
    those of the other. Options of a task are written as task:option=value+option=value. With
    --family, a list of tasks, --retain and --forget are options alone (shots=2+instruction=false),
    and every task of the family is left out of the fit in turn and tested.

    Args:
        task: a built-in task (below), a .jsonl file, or a comma list of them
        model: mini, mini-sparse, smollm2, a model directory, a hub id, or a comma list of them
        seeds: fits from different random gates
        n: prompts that the gates are fitted to; default: 96, or what a task has less --test
        test: prompts that test them, about other things; default: 32, or what --n leaves, or a
            quarter of a small task
        seed: of the prompts, their order and the first gates
        split: test, train (what our embedded models have seen) or all
        lambda_: how hard gates are pulled open and shut
        updates: of each fit
        rates: learning rates of the free fit, the first and the last
        pulled_rates: learning rates of the pulled fits, the first and the last
        batch: prompts in an update; default: 64, on a CPU 8
        clip: the logit at which the pull ends, and its negative
        k: how many heads the ablation curves shut
        points: measure only so many points of these curves; default: every k
        no_patching: do not compare with exact patching, which costs a pass per head
        retain: contrastive gating: the task to keep
        forget: contrastive gating: the task to lose
        family: contrastive gating: tasks to leave out in turn
        out: the folder that holds run folders
        device: cpu, cuda, cuda:1, mps; default: the best there is
        dtype: float32, float64, bfloat16 or float16
        n_devices: GPUs to spread the layers over
        budget: tokens per pass, which bounds memory; default: what suits the device
        quiet: no notices and no progress bar
        options: the task's own options
    """
    settings = runs.settings_of(locals())
    from tasks.contrasts import read_contrasts

    names, models = read_list(task, str, "--task"), read_list(model, str, "--model")
    contrasts = read_contrasts(retain, forget, family)
    check(names, models, n, test, split, options, contrasts)
    if contrasts:
        check_contrast(settings, options)
    free, pulled = _two(rates, "--rates"), _two(pulled_rates, "--pulled-rates")
    for name in models:
        locate.find(name, quiet=quiet)
    words = ["gate", *(["contrast"] if contrasts else names), *models]
    folder = runs.folder_for(out, words, settings)
    say(f"Loading {', '.join(models)} ...", quiet)
    from mechheads.gating import Recipe
    from mechheads.gating.ablation import grid
    from mechheads.reports.run import REPORT

    recipe = Recipe(seeds, updates, lambda_, free, pulled, batch, clip, seed)
    recipe.check()
    grid(1000, k, points)
    if contrasts:
        said = _contrast(models[0], contrasts, recipe, settings, folder, quiet)
    else:
        said = _cells(names, models, options, recipe, settings, folder, quiet)
    print("\n".join([*said, str(folder / REPORT)]))


def check(
    names: list[str],
    models: list[str],
    n: int | None,
    test: int | None,
    split: str,
    options: Mapping[str, str],
    contrasts: "list[Plan]",
) -> None:
    """What can be wrong is looked at before torch is imported."""
    import tasks

    shown = [Path(name).stem if tasks.is_file(name) else name for name in names]
    for flag, listed in (("--task", shown), ("--model", models)):
        if len(set(listed)) < len(listed):
            raise MechheadsError(f"{flag} has two of one name: {','.join(listed)}. Rename one.")
    for flag, size in (("--n", n), ("--test", test)):
        check_prompts(flag, LEAST if size is None else size)
    if contrasts:
        if len(models) > 1:
            raise MechheadsError("contrastive gating takes one --model.")
        for plan in contrasts:
            for side in plan.formats:
                tasks.check(side.task, n, split, dict(side.options))
        return
    for name in names:
        tasks.check(name, n, split, dict(options))


def check_contrast(settings: Mapping[str, Any], options: Mapping[str, str]) -> None:
    """An error names a flag that contrastive gating would not use."""
    for name in options:
        raise MechheadsError(
            f"contrastive gating takes no --{name.replace('_', '-')}: write it behind the task, "
            "such as math:shots=2."
        )
    for name in UNUSED:
        if settings[name] != signature(gate).parameters[name].default:
            raise MechheadsError(
                f"contrastive gating has no use for --{name.replace('_', '-')}. Leave it out."
            )


def make_prompts(
    model: "Model", task: str, options: Mapping[str, Any], settings: Mapping[str, Any]
) -> "tuple[Prompts, Prompts]":
    """Prompts that fit and prompts that test: no group is in both."""
    import tasks
    from mechheads.models.model import encoder_of
    from mechheads.prompts import lexicon_of
    from mechheads.prompts.partitions import split_prompts, wanted

    n, test = settings["n"], settings["test"]
    made = tasks.make(
        task,
        lexicon_of(model),
        n=tasks.default_count(task, wanted(n, test)),
        seed=settings["seed"],
        split=settings["split"],
        or_all=n is None or test is None,
        **dict(options),
    )
    return split_prompts(encoder_of(model), made, n, test)


def notes() -> str:
    """Tasks with their own flags, for the help text."""
    from mechheads import show

    return show.notes()


def flags() -> list[str]:
    """The names of all tasks' own options."""
    from mechheads import show

    return show.task_flags()


def _cells(
    names: list[str],
    models: list[str],
    options: Mapping[str, Any],
    recipe: "Recipe",
    settings: Mapping[str, Any],
    folder: Path,
    quiet: bool,
) -> list[str]:
    """Every task on every model, the run folder of it all, and the results in words."""
    from mechheads.gating.cells import measure_cell
    from mechheads.gating.circuits import gated_circuits, save_circuits
    from mechheads.gating.report import write_gating
    from mechheads.models.load import load
    from mechheads.models.provenance import provenance

    start = time.monotonic()
    cells, origins, timings = [], {}, {}
    common = {name: settings[name] for name in ("k", "points", "budget")}
    common |= {"patching": not settings["no_patching"], "quiet": quiet}

    def prepare(name: str) -> "tuple[Model, dict[str, tuple[Prompts, Prompts]]]":
        loaded = load(name, quiet=quiet, **{key: settings[key] for key in locate.PLACE})
        return loaded, {task: make_prompts(loaded, task, options, settings) for task in names}

    # What is wrong with the last model's prompts should not cost the first one's fits.
    for name in models[1:]:
        prepare(name)
    for name in models:
        loaded, made = prepare(name)
        for task in names:
            say(f"{task} on {name}", quiet)
            begun = time.monotonic()
            cells.append(measure_cell(loaded, *made[task], recipe, **common))
            timings[f"{task} on {name}"] = time.monotonic() - begun
        every = [part for both in made.values() for part in both]
        origins[name] = provenance(loaded, locate.find(name, quiet=quiet), every, recipe.seed)
    record = runs.Record(
        "gate",
        settings,
        {"parts": {cell.name: cell.headline for cell in cells}},
        origins[models[0]] if len(models) == 1 else origins,
    )
    timings["seconds"] = time.monotonic() - start

    def write(place: Path) -> None:
        write_gating(place, cells, record)
        save_circuits(place, [gated_circuits(cell.gating) for cell in cells])

    runs.keep(folder, record, timings, write)
    return [
        line
        for cell in cells
        for line in (cell.sentence, *(f"Warning: {w}" for w in cell.headline["warnings"]))
    ]


def _contrast(
    name: str,
    contrasts: "list[Plan]",
    recipe: "Recipe",
    settings: Mapping[str, Any],
    folder: Path,
    quiet: bool,
) -> list[str]:
    """Contrastive gating, its run folder, and the result in words."""
    from mechheads.gating.circuits import contrast_circuits, save_circuits
    from mechheads.gating.contrast import run_contrasts
    from mechheads.gating.report import write_contrast
    from mechheads.models.load import load
    from mechheads.models.provenance import provenance

    start = time.monotonic()
    loaded = load(name, quiet=quiet, **{key: settings[key] for key in locate.PLACE})
    formats = {side.name: side for plan in contrasts for side in plan.formats}
    made = {
        side.name: make_prompts(loaded, side.task, side.options, settings)
        for side in formats.values()
    }
    trials = [(plan.left_out, *sides_of(plan, made)) for plan in contrasts]
    found = run_contrasts(loaded, trials, recipe, budget=settings["budget"], quiet=quiet)
    every = [part for both in made.values() for part in both]
    origin = provenance(loaded, locate.find(name, quiet=quiet), every, recipe.seed)
    fitted = {
        f"{left_out or 'all'}, {kind}, prompts fitted": float(len(side.fitted))
        for left_out, *sides in trials
        for kind, side in zip(("retain", "forget"), sides, strict=True)
    }
    record = runs.Record("gate", settings, fitted | found.headline, origin)
    timings = {"seconds": time.monotonic() - start}

    def write(place: Path) -> None:
        write_contrast(place, found, record)
        save_circuits(place, [contrast_circuits(trial, found.model) for trial in found.trials])

    runs.keep(folder, record, timings, write)
    return [found.sentence, *(f"Warning: {words}" for words in found.warnings)]


def sides_of(plan: "Plan", made: "Mapping[str, tuple[Prompts, Prompts]]") -> "tuple[Side, Side]":
    """Both sides of a trial; what is tested on either has been fitted on none."""
    from mechheads.gating.contrast import Side, keep_apart
    from mechheads.prompts import Prompts

    def side(fitted: "Sequence[Format]", test: "Format") -> Side:
        parts = [made[each.name][0] for each in fitted]
        pairs = tuple(pair for part in parts for pair in part.pairs)
        return Side(test.name, Prompts(test.name, parts[0].metric, pairs), made[test.name][1])

    return keep_apart(side(plan.retain, plan.tests[0]), side(plan.forget, plan.tests[1]))


def _two(text: str, flag: str) -> tuple[float, float]:
    values = read_list(text, float, flag)
    if len(values) != 2:
        raise MechheadsError(
            f"{flag} takes the first and the last learning rate, such as 0.5,0.1; got {text}."
        )
    return values[0], values[1]


if __name__ == "__main__":
    run(gate, notes, flags)
