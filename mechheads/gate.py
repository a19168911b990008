"""Verb `gate`: which heads facilitate a task, which interfere, which do not matter."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import runs, sources
from .cli import run
from .errors import MechheadsError
from .progress import say
from .prompts import LEAST, check_prompts, read_list

if TYPE_CHECKING:
    from .gating import Recipe
    from .gating.contrast import Contrast, Side
    from .gating.report import Cell
    from .models import Model
    from .prompts import Prompts

USUAL, USUAL_TEST = 96, 32  # prompts that gates are fitted to, and that test them


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
        test: prompts that test them; default: 32, or a quarter of a small task
        seed: of the prompts, their order and the first gates
        split: test, train (what our embedded models have seen) or all
        lambda_: how hard gates are pulled open and shut
        updates: of each fit
        rates: learning rates of the free fit, the first and the last
        pulled_rates: learning rates of the pulled fits, the first and the last
        batch: prompts in an update; default: 64, on a CPU 8
        clip: logits of gates stay between this and its negative
        k: how many heads the ablation curves shut
        points: measure only so many points of these curves; default: every k
        no_patching: do not compare with exact patching, which costs a pass per head
        retain: contrastive gating: the task to keep
        forget: contrastive gating: the task to lose
        family: contrastive gating: tasks to leave out in turn
        out: the folder that holds run folders
        device: cpu, cuda, cuda:1, mps; default: the best there is
        dtype: float32, float64, bfloat16 or float16
        budget: tokens per pass, which bounds memory; default: what suits the device
        quiet: no notices and no progress bar
        options: the task's own options
    """
    settings = runs.settings_of(locals())
    names, models = read_list(task, str, "--task"), read_list(model, str, "--model")
    contrasts = read_contrasts(retain, forget, family)
    check(names, models, n, test, split, options, contrasts)
    free, pulled = _two(rates, "--rates"), _two(pulled_rates, "--pulled-rates")
    for name in models:
        sources.find(name, quiet=quiet)
    words = ["gate", *(["contrast"] if contrasts else names), *models]
    folder = runs.folder_for(out, words, settings)
    say(f"Loading {', '.join(models)} ...", quiet)
    from .gating import Recipe
    from .gating.ablation import grid
    from .reports import REPORT

    recipe = Recipe(seeds, updates, lambda_, free, pulled, batch, clip, seed)
    recipe.check()
    grid(1000, k, points)
    if contrasts:
        sentence = _contrast(models[0], contrasts, recipe, settings, folder, quiet)
        print(f"{sentence}\n{folder / REPORT}")
        return
    cells = _cells(names, models, options, recipe, settings, folder, quiet)
    for cell in cells:
        print("\n".join([cell.sentence, *(f"Warning: {w}" for w in cell.headline["warnings"])]))
    print(folder / REPORT)


@dataclass(frozen=True)
class Format:
    """A task with its own options, as it is written in --retain, --forget and --family."""

    task: str
    options: Mapping[str, str]

    @property
    def name(self) -> str:
        """As it is written."""
        listed = "+".join(f"{key}={value}" for key, value in self.options.items())
        return f"{self.task}:{listed}" if listed else self.task


def read_contrasts(
    retain: str | None, forget: str | None, family: str | None
) -> list[tuple[str, list[Format], list[Format], Format, Format]]:
    """Trials: the task that is left out, what is fitted for both sides, what is tested for both."""
    if retain is None and forget is None and family is None:
        return []
    if retain is None or forget is None:
        raise MechheadsError("contrastive gating takes both --retain and --forget.")
    if family is None:
        kept, lost = _format(retain, "--retain"), _format(forget, "--forget")
        if kept.name == lost.name:
            raise MechheadsError(f"--retain and --forget are the same, {kept.name}.")
        return [("", [kept], [lost], kept, lost)]
    tasks = [_format(text, "--family") for text in read_list(family, str, "--family")]
    if len({t.name for t in tasks}) < max(2, len(tasks)):
        raise MechheadsError(f"--family takes two or more different tasks, got {family}.")
    changes = [_options(text, flag) for text, flag in ((retain, "--retain"), (forget, "--forget"))]
    if changes[0] == changes[1]:
        raise MechheadsError(f"--retain and --forget are the same, {retain}.")
    sides = [[Format(t.task, {**t.options, **change}) for t in tasks] for change in changes]
    return [
        (
            left_out.name,
            [side for j, side in enumerate(sides[0]) if j != i],
            [side for j, side in enumerate(sides[1]) if j != i],
            sides[0][i],
            sides[1][i],
        )
        for i, left_out in enumerate(tasks)
    ]


def check(
    names: list[str],
    models: list[str],
    n: int | None,
    test: int | None,
    split: str,
    options: Mapping[str, str],
    contrasts: list[Any],
) -> None:
    """What can be wrong is looked at before torch is imported."""
    import tasks

    for flag, listed in (("--task", names), ("--model", models)):
        if len(set(listed)) < len(listed):
            raise MechheadsError(f"{flag} names one twice: {','.join(listed)}.")
    for flag, size in (("--n", n), ("--test", test)):
        check_prompts(flag, LEAST if size is None else size)
    if contrasts:
        if len(models) > 1:
            raise MechheadsError("contrastive gating takes one --model.")
        for _, *sides in contrasts:
            for side in (*sides[0], *sides[1]):
                tasks.check(side.task, n, split, dict(side.options))
        return
    for name in names:
        tasks.check(name, n, split, dict(options))


def make_prompts(
    model: "Model", task: str, options: Mapping[str, Any], settings: Mapping[str, Any]
) -> "tuple[Prompts, Prompts]":
    """Prompts that fit and prompts that test: no pair is in both."""
    import tasks

    from .models import lexicon

    n, test = settings["n"], settings["test"]
    wanted = tasks.default_count(task, (n or USUAL) + (test or USUAL_TEST))
    made = tasks.make(
        task,
        lexicon(model),
        n=wanted,
        seed=settings["seed"],
        split=settings["split"],
        or_all=n is None,
        **dict(options),
    )
    tested = test or min(USUAL_TEST, len(made) // 4)
    fitted = n or len(made) - tested
    if fitted < LEAST or tested < LEAST or len(made) < fitted + tested:
        raise MechheadsError(
            f"{task} has {len(made)} different prompts, too few to fit {n or USUAL} and test "
            f"{test or USUAL_TEST}. Ask for fewer with --n and --test."
        )
    both = made.first(fitted + tested)
    return both.split_at(fitted)


def notes() -> str:
    """Tasks with their own flags, for the help text."""
    from . import show

    return show.notes()


def flags() -> list[str]:
    """The names of all tasks' own options."""
    from . import show

    return show.task_flags()


def _cells(
    names: list[str],
    models: list[str],
    options: Mapping[str, Any],
    recipe: "Recipe",
    settings: Mapping[str, Any],
    folder: Path,
    quiet: bool,
) -> "list[Cell]":
    """Every task on every model, and the run folder of it all."""
    from .gating.report import write_gating
    from .models import load
    from .provenance import provenance

    start = time.monotonic()
    cells, origins, timings = [], {}, {}
    for name in models:
        loaded = load(name, device=settings["device"], dtype=settings["dtype"], quiet=quiet)
        made = {task: make_prompts(loaded, task, options, settings) for task in names}
        for task in names:
            say(f"{task} on {name}", quiet)
            begun = time.monotonic()
            cells.append(_cell(loaded, *made[task], recipe, settings, quiet))
            timings[f"{task} on {name}"] = time.monotonic() - begun
        every = [part for both in made.values() for part in both]
        origins[name] = provenance(loaded, sources.find(name, quiet=quiet), every, recipe.seed)
    headline = {cell.name: cell.headline for cell in cells}
    single = len(cells) == 1
    record = runs.Record(
        "gate",
        settings,
        cells[0].headline if single else headline,
        origins[models[0]] if len(models) == 1 else origins,
    )
    timings["seconds"] = time.monotonic() - start

    def write(place: Path) -> None:
        write_gating(place, cells, record)
        if single:
            _write_circuits(place, cells[0])

    runs.keep(folder, record, timings, write)
    return cells


def _cell(
    model: "Model",
    fitted: "Prompts",
    tested: "Prompts",
    recipe: "Recipe",
    settings: Mapping[str, Any],
    quiet: bool,
) -> "Cell":
    from .evaluation import evaluate
    from .gating import fit_gates
    from .gating.ablation import ablate, grid
    from .gating.report import Cell, measure_gates
    from .gating.roles import agreement
    from .patching import patch

    budget = settings["budget"]
    heads = model.cfg.n_layers * model.cfg.n_heads
    ks = grid(heads, settings["k"], settings["points"])
    judged = evaluate(model, tested, "logprob", quiet=True)
    found = fit_gates(model, fitted, recipe, budget=budget, quiet=quiet)
    agreed = None
    if not settings["no_patching"]:
        agreed = agreement(found, patch(model, tested, budget=budget, quiet=quiet))
    curves = ablate(model, found, tested, ks, budget=budget, quiet=quiet)
    masks = measure_gates(model, found, tested, budget=budget)
    return Cell(found, curves, agreed, masks, judged.warning)


def _write_circuits(folder: Path, cell: "Cell") -> None:
    """The heads that G- and G+ keep, with their soft gates, as circuits."""
    from circuits.circuit import Circuit

    found = cell.gating
    for file, gates, what in (
        ("circuit.json", "minus", "G-, the heads that are needed"),
        ("circuit_plus.json", "plus", "G+, all heads but those that interfere"),
    ):
        heads = found.kept(gates)
        mean = getattr(found, gates).mean(0)
        roles = {head: found.role_of(*head) for head in heads}
        Circuit(
            f"{cell.name}: {what}",
            tuple(heads),
            found.task,
            found.model,
            {head: role for head, role in roles.items() if role},
            f"mechheads gate, {len(found.plus)} seeds",
            {head: round(float(mean[head]), 6) for head in heads},
        ).save(folder / file)


def _contrast(
    name: str,
    contrasts: list[tuple[str, list[Format], list[Format], Format, Format]],
    recipe: "Recipe",
    settings: Mapping[str, Any],
    folder: Path,
    quiet: bool,
) -> str:
    """Contrastive gating, its run folder, and the result in words."""
    from .gating.contrast import run_contrasts
    from .gating.report import write_contrast
    from .models import load
    from .provenance import provenance

    start = time.monotonic()
    loaded = load(name, device=settings["device"], dtype=settings["dtype"], quiet=quiet)
    made: dict[str, tuple[Prompts, Prompts]] = {}
    for _, kept, lost, *tested in contrasts:
        for side in (*kept, *lost, *tested):
            if side.name not in made:
                made[side.name] = make_prompts(loaded, side.task, side.options, settings)
    trials = [
        (left_out, _side(made, kept, kept_test), _side(made, lost, lost_test))
        for left_out, kept, lost, kept_test, lost_test in contrasts
    ]
    found = run_contrasts(loaded, trials, recipe, budget=settings["budget"], quiet=quiet)
    sentence = _in_words(found)
    every = [part for both in made.values() for part in both]
    origin = provenance(loaded, sources.find(name, quiet=quiet), every, recipe.seed)
    headline = {
        f"{trial.left_out or 'all'}, {side}, {state}": float(value)
        for trial in found.trials
        for i, side in enumerate(("retain", "forget"))
        for state, value in (("before", trial.before[i]), ("after", trial.after[i].mean()))
    }
    record = runs.Record("gate", settings, headline, origin)
    timings = {"seconds": time.monotonic() - start}
    runs.keep(folder, record, timings, lambda place: write_contrast(place, found, record, sentence))
    return sentence


def _side(
    made: "Mapping[str, tuple[Prompts, Prompts]]", fitted: list[Format], tested: Format
) -> "Side":
    from .gating.contrast import Side
    from .prompts import Prompts

    parts = [made[side.name][0] for side in fitted]
    pairs = tuple(pair for part in parts for pair in part.pairs)
    return Side(tested.name, Prompts(tested.name, parts[0].metric, pairs), made[tested.name][1])


def _in_words(found: "Contrast") -> str:
    lines = []
    for trial in found.trials:
        ends = [
            f"{name} {trial.before[i].item():.0%} -> {trial.after[i].mean().item():.0%}"
            for i, name in enumerate((trial.retain, trial.forget))
        ]
        start = f"{trial.left_out} left out: r" if trial.left_out else "R"
        lines.append(f"{start}etain {ends[0]}, forget {ends[1]}.")
    return " ".join(lines)


def _two(text: str, flag: str) -> tuple[float, float]:
    values = read_list(text, float, flag)
    if len(values) != 2:
        raise MechheadsError(
            f"{flag} takes the first and the last learning rate, such as 0.5,0.1; got {text}."
        )
    return values[0], values[1]


def _format(text: str, flag: str) -> Format:
    task, _, listed = text.partition(":")
    return Format(task, _options(listed, flag) if listed else {})


def _options(text: str, flag: str) -> dict[str, str]:
    parts = [part.partition("=") for part in text.split("+")]
    if not all(key and equals and value for key, equals, value in parts):
        raise MechheadsError(f"{flag} takes options as shots=2+instruction=false, got {text!r}.")
    return {key.replace("-", "_"): value for key, _, value in parts}


if __name__ == "__main__":
    run(gate, notes, flags)
