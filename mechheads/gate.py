"""Verb `gate`: which heads facilitate a task, which interfere, which do not matter."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import runs, sources
from .cli import run
from .errors import MechheadsError
from .progress import say
from .prompts import LEAST, check_prompts, read_list

if TYPE_CHECKING:
    from circuits.circuit import Circuit

    from .gating import Recipe
    from .gating.contrast import Contrast, Side, Trial
    from .gating.report import Cell
    from .models import Model
    from .prompts import Pair, Prompts

USUAL, USUAL_TEST = 96, 32  # prompts that gates are fitted to, and that test them
UNUSED = ("task", "rates", "k", "points", "no_patching")  # by contrastive gating
# What is left out of the fit; what is fitted to retain and to forget; what tests both.
Plan = tuple[str, list["Format"], list["Format"], "Format", "Format"]


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
        budget: tokens per pass, which bounds memory; default: what suits the device
        quiet: no notices and no progress bar
        options: the task's own options
    """
    settings = runs.settings_of(locals())
    names, models = read_list(task, str, "--task"), read_list(model, str, "--model")
    contrasts = read_contrasts(retain, forget, family)
    check(names, models, n, test, split, options, contrasts)
    if contrasts:
        check_contrast(settings, options)
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
        said = _contrast(models[0], contrasts, recipe, settings, folder, quiet)
    else:
        said = _cells(names, models, options, recipe, settings, folder, quiet)
    print("\n".join([*said, str(folder / REPORT)]))


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

    @property
    def meaning(self) -> tuple[Any, ...]:
        """The task with all its options as it reads them, or an error."""
        import tasks

        given = tasks.check(self.task, None, "all", dict(self.options))
        own = {} if tasks.is_file(self.task) else tasks.TASKS[self.task].options
        return self.task, *sorted(({name: p.default for name, p in own.items()} | given).items())


def read_contrasts(retain: str | None, forget: str | None, family: str | None) -> list[Plan]:
    """A trial of two tasks, or one for every task of a family that is left out."""
    if retain is None and forget is None and family is None:
        return []
    if retain is None or forget is None:
        raise MechheadsError("contrastive gating takes both --retain and --forget.")
    if family is None:
        kept, lost = _format(retain, "--retain"), _format(forget, "--forget")
        _check_apart(kept, lost)
        return [("", [kept], [lost], kept, lost)]
    tasks = [_format(text, "--family") for text in read_list(family, str, "--family")]
    if len({t.meaning for t in tasks}) < max(2, len(tasks)):
        raise MechheadsError(f"--family takes two or more different tasks, got {family}.")
    changes = [_options(text, flag) for text, flag in ((retain, "--retain"), (forget, "--forget"))]
    sides = [[Format(t.task, {**t.options, **change}) for t in tasks] for change in changes]
    for kept, lost in zip(*sides, strict=True):
        _check_apart(kept, lost)
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

    shown = [Path(name).stem if tasks.is_file(name) else name for name in names]
    for flag, listed in (("--task", shown), ("--model", models)):
        if len(set(listed)) < len(listed):
            raise MechheadsError(f"{flag} has two of one name: {','.join(listed)}. Rename one.")
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

    from .models import lexicon

    n, test = settings["n"], settings["test"]
    wanted = tasks.default_count(task, (n or USUAL) + (test or USUAL_TEST))
    made = tasks.make(
        task,
        lexicon(model),
        n=wanted,
        seed=settings["seed"],
        split=settings["split"],
        or_all=n is None or test is None,
        **dict(options),
    )
    tested = test or min(USUAL_TEST, len(made) - n if n else len(made) // 4)
    fitted = n or len(made) - tested
    sides = made.first(fitted + tested).split_at(fitted)
    if len(made) < fitted + tested or min(map(len, sides)) < LEAST:
        raise MechheadsError(
            f"{task} has {len(made)} different prompts, too few to fit {n or USUAL} and test "
            f"{test or USUAL_TEST}. Ask for fewer with --n and --test."
        )
    return sides[0], sides[1].first(tested)


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
) -> list[str]:
    """Every task on every model, the run folder of it all, and the results in words."""
    from .gating.report import write_gating
    from .models import load
    from .provenance import provenance

    start = time.monotonic()
    cells, origins, timings = [], {}, {}

    def prepare(name: str) -> "tuple[Model, dict[str, tuple[Prompts, Prompts]]]":
        loaded = load(name, device=settings["device"], dtype=settings["dtype"], quiet=quiet)
        return loaded, {task: _checked(loaded, task, options, settings) for task in names}

    # What is wrong with the last model's prompts should not cost the first one's fits.
    for name in models[1:]:
        prepare(name)
    for name in models:
        loaded, made = prepare(name)
        for task in names:
            say(f"{task} on {name}", quiet)
            begun = time.monotonic()
            cells.append(_cell(loaded, *made[task], recipe, settings, quiet))
            timings[f"{task} on {name}"] = time.monotonic() - begun
        every = [part for both in made.values() for part in both]
        origins[name] = provenance(loaded, sources.find(name, quiet=quiet), every, recipe.seed)
    headline = {f"{c.name}: {key}": value for c in cells for key, value in c.headline.items()}
    record = runs.Record(
        "gate",
        settings,
        cells[0].headline if len(cells) == 1 else headline,
        origins[models[0]] if len(models) == 1 else origins,
    )
    timings["seconds"] = time.monotonic() - start

    def write(place: Path) -> None:
        write_gating(place, cells, record)
        for i, cell in enumerate(cells):
            _save_circuits(place, _circuits(cell), "" if len(cells) == 1 else f"_{i}")

    runs.keep(folder, record, timings, write)
    return [
        line
        for cell in cells
        for line in (cell.sentence, *(f"Warning: {w}" for w in cell.headline["warnings"]))
    ]


def _checked(
    model: "Model", task: str, options: Mapping[str, Any], settings: Mapping[str, Any]
) -> "tuple[Prompts, Prompts]":
    """Prompts whose tokens the model can take."""
    from .batches import batches

    both = make_prompts(model, task, options, settings)
    for part in both:
        list(batches(model, part))
    return both


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


def _circuits(cell: "Cell") -> "dict[str, Circuit]":
    """All heads with their gates in G- and G+, mean over seeds, by the files' names."""
    from circuits.circuit import Circuit

    found = cell.gating
    heads = found.ranking()
    roles = {head: role for head in heads if (role := found.role_of(*head))}
    masks = {
        "circuit": (found.minus, "G-, the heads that are needed"),
        "circuit_plus": (found.plus, "G+, all heads but those that interfere"),
    }
    return {
        file: Circuit(
            f"{cell.name}: {what}",
            tuple(heads),
            found.task,
            found.model,
            roles,
            f"mechheads gate, {len(gates)} seeds",
            {head: float(gates.mean(0)[head]) for head in heads},
        )
        for file, (gates, what) in masks.items()
    }


def _contrast_circuit(trial: "Trial", model: str) -> "Circuit":
    """All heads with their gates, mean over seeds."""
    from circuits.circuit import Circuit

    mean = trial.gates.mean(0)
    gates = {divmod(i, mean.shape[1]): gate for i, gate in enumerate(mean.flatten().tolist())}
    return Circuit(
        f"retain {trial.retain}, forget {trial.forget}",
        tuple(sorted(gates, key=lambda head: -gates[head])),
        trial.retain,
        model,
        source=f"mechheads gate, {len(trial.gates)} seeds",
        gates=gates,
    )


def _save_circuits(folder: Path, soft: "Mapping[str, Circuit]", end: str) -> None:
    """The soft circuits, and beside each the heads whose gate is 0.5 or more, without gates."""
    from .gating.roles import LIMIT

    for file, circuit in soft.items():
        circuit.save(folder / f"{file}_soft{end}.json")
        heads = tuple(head for head in circuit.heads if circuit.gates[head] >= LIMIT)
        cut = replace(circuit, name=f"{circuit.name}, cut at {LIMIT}", heads=heads, gates={})
        cut.save(folder / f"{file}{end}.json")


def _contrast(
    name: str,
    contrasts: list[Plan],
    recipe: "Recipe",
    settings: Mapping[str, Any],
    folder: Path,
    quiet: bool,
) -> list[str]:
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
                made[side.name] = _checked(loaded, side.task, side.options, settings)
    trials = [(plan[0], *sides_of(plan, made)) for plan in contrasts]
    found = run_contrasts(loaded, trials, recipe, budget=settings["budget"], quiet=quiet)
    sentence = _in_words(found)
    every = [part for both in made.values() for part in both]
    origin = provenance(loaded, sources.find(name, quiet=quiet), every, recipe.seed)
    headline: dict[str, Any] = {
        f"{left_out or 'all'}, {side}, {what}": float(value)
        for (left_out, *sides), trial in zip(trials, found.trials, strict=True)
        for i, side in enumerate(("retain", "forget"))
        for what, value in (
            ("prompts fitted", len(sides[i].fitted)),
            ("before", trial.before[i]),
            ("after", trial.after[i].mean()),
        )
    }
    headline |= {"batch": found.settings["batch"], "warnings": found.warnings}
    record = runs.Record("gate", settings, headline, origin)
    timings = {"seconds": time.monotonic() - start}

    def write(place: Path) -> None:
        write_contrast(place, found, record, sentence)
        for i, trial in enumerate(found.trials):
            soft = {"circuit": _contrast_circuit(trial, found.model)}
            _save_circuits(place, soft, "" if len(found.trials) == 1 else f"_{i}")

    runs.keep(folder, record, timings, write)
    return [sentence, *(f"Warning: {words}" for words in found.warnings)]


def sides_of(plan: Plan, made: "Mapping[str, tuple[Prompts, Prompts]]") -> "tuple[Side, Side]":
    """Both sides of a trial; what is tested on either has been fitted on none."""
    from .gating.contrast import Side
    from .prompts import Prompts

    _, kept, lost, *tests = plan
    tested = {_about(pair) for test in tests for pair in made[test.name][1].pairs}

    def side(fitted: list[Format], test: Format) -> Side:
        parts = [made[each.name][0] for each in fitted]
        pairs = [p for part in parts for p in part.pairs if _about(p) not in tested]
        if len(pairs) < LEAST:
            raise MechheadsError(
                f"{test.name}: {len(pairs)} prompts are left to fit without those about what is "
                "tested. Ask for more with --n, or for fewer with --test."
            )
        return Side(
            test.name, Prompts(test.name, parts[0].metric, tuple(pairs)), made[test.name][1]
        )

    return side(kept, tests[0]), side(lost, tests[1])


def _about(pair: "Pair") -> str:
    """What a prompt asks, whatever solved examples stand before it: formats differ in these."""
    return (pair.group or pair.clean).partition(" after ")[0]


def _check_apart(kept: Format, lost: Format) -> None:
    if kept.meaning == lost.meaning:
        raise MechheadsError(f"--retain and --forget are the same, {kept.name}.")


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
