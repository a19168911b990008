"""The job of `leaderboard`: all methods on every model, task and seed."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mechheads.errors import MechheadsError, unknown
from mechheads.models.locate import check_distinct
from mechheads.models.options import ModelOptions
from mechheads.options import LARGEST, check_least, pick, read_list
from mechheads.progress import stages
from mechheads.scoring import registry
from tasks.known import KNOWN

from .prompts import check, length, ranking_and_judging
from .run import Job, Measured, Session

if TYPE_CHECKING:
    from circuits import Leaderboard
    from mechheads.models.model import Model
    from mechheads.prompts import Prompts

RANDOM = "random"
MOST = 100  # seeds
NAMED = 3  # models in the name of the folder
# Passed to circuits.rank_methods unchanged.
OPTIONS = "threshold replacement draws budget".split()


def prepare(settings: Mapping[str, Any], quiet: bool = False) -> Job:
    """Check the settings; needs no torch."""
    lists = "models", "tasks", "methods"
    names, asked, methods = (read_list(settings[key], str, f"--{key}") for key in lists)
    for key, values in zip(lists, (names, asked, methods), strict=True):
        if len(set(values)) < len(values):
            raise MechheadsError(f"--{key} lists a {key[:-1]} twice: {','.join(values)}.")
    check_methods(methods)
    check_seeds(settings)
    pairs = tasks_of(names, asked)
    for task in dict.fromkeys(task for listed in pairs.values() for task in listed):
        check(task, "patch", settings, {})
    loading = pick(ModelOptions, settings)
    sources = {name: loading.find(name, quiet) for name in names}
    check_distinct("--models", sources.values())

    def measure(session: Session) -> Measured:
        from circuits.experiment import check_settings
        from mechheads.models.provenance import provenance

        check_settings(threshold=settings["threshold"], draws=settings["draws"])
        for method in methods:
            if method != RANDOM:
                _ = registry.find(method).given  # an error if an option cannot be read
        boards, origins, spent = [], {}, {}
        sizes = {name: loading.size(name) * len(pairs[name]) for name in names}
        with stages("leaderboard", sizes, session.quiet) as progress:
            for name in names:
                with progress.stage(name):
                    loaded = loading.load(name, session.models, session.quiet)
                    found, used = rounds_of(loaded, pairs[name], methods, settings, session, spent)
                boards += found
                origins[name] = provenance(loaded, sources[name], used, settings["seed"])
                del loaded
        seconds = {f"cpu_seconds of {what}": value for what, value in spent.items()}
        origin = origins[names[0]] if len(names) == 1 else origins
        return Measured(joined(boards), origin, seconds)

    words = ["leaderboard", *names[:NAMED]]
    words += [f"{len(names) - NAMED} more"] if len(names) > NAMED else []
    return Job(words, names, settings, measure)


def check_methods(methods: Sequence[str]) -> None:
    """Raise an error if a method is unknown, or if there is nothing to compare."""
    for method in methods:
        if method.partition(":")[0] not in (*registry.METHODS, RANDOM):
            raise unknown("method", method, [*registry.METHODS, RANDOM])
        if method != RANDOM:
            registry.find(method)
    if len(methods) < 2:
        raise MechheadsError(f"--methods takes two or more methods to compare, got {methods[0]}.")


def check_seeds(settings: Mapping[str, Any]) -> None:
    """Raise an error if there are no seeds, or far too many."""
    seeds, first = settings["seeds"], settings["seed"]
    check_least("--seeds", seeds, 1)
    if seeds > MOST:
        raise MechheadsError(f"--seeds takes up to {MOST} samples of prompts, got {seeds}.")
    if first + seeds > LARGEST:
        raise MechheadsError(f"--seed {first} leaves no room for {seeds} seeds. Use a smaller one.")


def tasks_of(models: Sequence[str], tasks: Sequence[str]) -> dict[str, list[str]]:
    """The tasks that each model is asked: a known model its own, the others all but such tasks."""
    others = [task for task in tasks if task not in KNOWN]
    for task in tasks:
        if task in KNOWN and task not in models:
            raise MechheadsError(
                f"The task {task} is asked of the model {task} only. Add it to --models, or leave "
                "the task out."
            )
    found = {model: [model] if model in KNOWN else others for model in models}
    if empty := [model for model, asked in found.items() if not asked]:
        raise MechheadsError(
            f"--tasks has no task for {empty[0]}: {', '.join(tasks)} are asked of the models of "
            "these names only. Add one, for example ioi."
        )
    return found


def rounds_of(
    model: "Model",
    tasks: Sequence[str],
    methods: Sequence[str],
    settings: Mapping[str, Any],
    session: Session,
    spent: dict[str, float],
) -> "tuple[list[Leaderboard], list[Prompts]]":
    """A board per task and seed, empty if it cannot be measured, and the prompts used."""
    import circuits

    seeds = range(settings["seed"], settings["seed"] + settings["seeds"])
    given = {key: settings[key] for key in OPTIONS}
    boards, made = [], {}
    for task in tasks:
        for seed in seeds:
            try:
                parts = ranking_and_judging(model, task, {**settings, "seed": seed}, {})
                made[task, seed] = tuple(replace(part, seed=seed) for part in parts)
            except MechheadsError as error:
                boards.append(nothing(model, task, seed, error, given))
    weights = {f"{task}, seed {seed}": length(made[task, seed]) for task, seed in made}
    with stages("leaderboard", weights, session.quiet) as progress:
        for (task, seed), (ranked, judged) in made.items():
            with progress.stage(f"{task}, seed {seed}"):
                try:
                    own: dict[str, Any] = {"methods": methods, "spent": spent, **given}
                    board = circuits.rank_methods(model, ranked, judged, quiet=session.quiet, **own)
                except MechheadsError as error:
                    board = nothing(model, task, seed, error, given)
            boards.append(board)
    return boards, [part for parts in made.values() for part in parts]


def nothing(
    model: "Model", task: str, seed: int, error: MechheadsError, given: Mapping[str, Any]
) -> "Leaderboard":
    """A board without rounds, which says why."""
    from circuits import Leaderboard
    from circuits.leaderboard.rounds import LeftOut
    from mechheads.models.model import model_name

    left_out = (LeftOut(model_name(model), task, seed, str(error)),)
    own = {key: given[key] for key in ("threshold", "replacement", "draws")}
    return Leaderboard((), **own, left_out=left_out)


def joined(boards: "Sequence[Leaderboard]") -> "Leaderboard":
    """All rounds on one board; an error if there are none."""
    whole = boards[0]
    for board in boards[1:]:
        whole = whole + board
    if not whole.rounds:
        raise MechheadsError(f"No round could be measured. {whole.warnings[0]}")
    return whole
