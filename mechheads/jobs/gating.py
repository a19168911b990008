"""The job of `gate`: gates for every task on every model, or contrastive gates."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mechheads.cli.commands import COMMANDS
from mechheads.errors import MechheadsError
from mechheads.models.locate import check_distinct
from mechheads.models.options import ModelOptions
from mechheads.options import check_least, flag_of, pick, read_list
from mechheads.progress import stages
from mechheads.prompts import LEAST, check_prompts
from tasks import registry as tasks
from tasks.contrasts import ContrastPlan, Format, read_contrasts

from .prompts import length
from .run import Job, Measured, Session

if TYPE_CHECKING:
    from mechheads.gating.contrast import Side
    from mechheads.models.model import Model
    from mechheads.prompts import Prompts
    from mechheads.scoring.gate_fitting import FitSettings

UNUSED = ("task", "rates", "k", "points", "no_patching")  # by contrastive gating


def prepare(settings: Mapping[str, Any], quiet: bool = False) -> Job:
    """Check the settings; needs no torch."""
    names = read_list(settings["task"], str, "--task")
    models = read_list(settings["model"], str, "--model")
    plans = read_contrasts(settings["retain"], settings["forget"], settings["family"])
    options = COMMANDS["gate"].own_options(settings)
    check(names, models, settings, options, plans)
    check_curve(settings)
    free, pulled = (_two(settings[name], flag_of(name)) for name in ("rates", "pulled_rates"))
    check_distinct("--model", [pick(ModelOptions, settings).find(name, quiet) for name in models])

    def measure(session: Session) -> Measured:
        from mechheads.scoring.gate_fitting import FitSettings

        kept = {name: settings[name] for name in ("seeds", "updates", "batch", "clip", "seed")}
        fitting = FitSettings(strength=settings["lambda_"], rates=free, pulled_rates=pulled, **kept)
        fitting.check()
        if plans:
            return contrast(models[0], plans, fitting, settings, session)
        return gate(names, models, options, fitting, settings, session)

    words = ["gate", *(["contrast"] if plans else names), *models]
    return Job(words, models, settings, measure)


def check(
    names: Sequence[str],
    models: Sequence[str],
    settings: Mapping[str, Any],
    options: Mapping[str, Any],
    plans: Sequence[ContrastPlan],
) -> None:
    """Raise an error if a task or model cannot be used with these settings."""
    n, split = settings["n"], settings["split"]
    shown = [Path(name).stem if tasks.is_file(name) else name for name in names]
    for flag, listed in (("--task", shown), ("--model", models)):
        if len(set(listed)) < len(listed):
            raise MechheadsError(f"{flag} lists a name twice: {','.join(listed)}. Rename one.")
    for name in ("n", "test"):
        check_prompts(f"--{name}", LEAST if settings[name] is None else settings[name])
    if plans:
        if len(models) > 1:
            raise MechheadsError(f"Contrastive gating takes one --model, got {','.join(models)}.")
        check_contrast(settings, options)
        for plan in plans:
            for side in plan.formats:
                tasks.check(side.task, n, split, dict(side.options))
        return
    for name in names:
        tasks.check(name, n, split, dict(options))


def check_curve(settings: Mapping[str, Any]) -> None:
    """Raise an error if the ablation curves would have too few heads or points."""
    check_least("--k", settings["k"], 1)
    check_least("--points", settings["points"], 2)


def check_contrast(settings: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Raise an error that names a flag contrastive gating does not use."""
    for name in options:
        raise MechheadsError(
            f"Contrastive gating does not take {flag_of(name)}: put it after the task, for "
            "example math:shots=2."
        )
    for name in UNUSED:
        if settings[name] != COMMANDS["gate"].settings[name].default:
            raise MechheadsError(f"Contrastive gating does not use {flag_of(name)}. Leave it out.")


def make_prompts(
    model: "Model", task: str, options: Mapping[str, Any], settings: Mapping[str, Any]
) -> "tuple[Prompts, Prompts]":
    """Prompts to fit the gates on and prompts to test them on; no group is in both."""
    from mechheads.models.model import encoder_of
    from mechheads.prompts.partitions import split_prompts, wanted

    n, test, skip = (settings.get(name) for name in ("n", "test", "skip_misaligned"))
    made = tasks.make(
        task,
        model,
        n=tasks.default_count(task, wanted(n, test), model if skip else None),
        seed=settings["seed"],
        split=settings["split"],
        or_all=n is None or test is None,
        skip_misaligned=bool(skip),
        **dict(options),
    )
    return split_prompts(encoder_of(model), made, n, test)


def gate(
    names: Sequence[str],
    models: Sequence[str],
    options: Mapping[str, Any],
    fitting: "FitSettings",
    settings: Mapping[str, Any],
    session: Session,
) -> Measured:
    """Run every task on every model."""
    from mechheads.gating.experiment import Gating, gate_task
    from mechheads.models.provenance import provenance

    loading, quiet = pick(ModelOptions, settings), session.quiet
    found, origins, timings = [], {}, {}
    common = {name: settings[name] for name in ("k", "points", "budget")}
    common |= {"patching": not settings["no_patching"], "quiet": quiet}

    def ready(name: str) -> "tuple[Model, dict[str, tuple[Prompts, Prompts]]]":
        loaded = loading.load(name, session.models, quiet)
        return loaded, {task: make_prompts(loaded, task, options, settings) for task in names}

    # Find problems with the last model's prompts before spending time on the first one's fits.
    for name in models[1:]:
        ready(name)

    def run_model(name: str) -> None:
        loaded, made = ready(name)
        with stages("gate", {task: length(made[task]) for task in names}, quiet) as progress:
            for task in names:
                begun = time.monotonic()
                with progress.stage(task):
                    found.append(gate_task(loaded, *made[task], fitting, **common))
                timings[f"{task} on {name}"] = time.monotonic() - begun
        every = [part for both in made.values() for part in both]
        origins[name] = provenance(loaded, loading.find(name), every, fitting.seed)

    with stages("gate", {name: loading.size(name) for name in models}, quiet) as progress:
        for name in models:
            with progress.stage(name):
                run_model(name)
    origin = origins[models[0]] if len(models) == 1 else origins
    return Measured(Gating(tuple(found)), origin, timings)


def contrast(
    name: str,
    plans: Sequence[ContrastPlan],
    fitting: "FitSettings",
    settings: Mapping[str, Any],
    session: Session,
) -> Measured:
    """Contrastive gates, one trial per plan."""
    from mechheads.gating.contrast import run_contrasts
    from mechheads.models.provenance import provenance

    loading = pick(ModelOptions, settings)
    loaded = loading.load(name, session.models, session.quiet)
    formats = {side.name: side for plan in plans for side in plan.formats}
    made = {
        side.name: make_prompts(loaded, side.task, side.options, settings)
        for side in formats.values()
    }
    trials = [(plan.left_out, *sides_of(plan, made)) for plan in plans]
    found = run_contrasts(loaded, trials, fitting, budget=settings["budget"], quiet=session.quiet)
    every = [part for both in made.values() for part in both]
    return Measured(found, provenance(loaded, loading.find(name), every, fitting.seed))


def sides_of(
    plan: ContrastPlan, made: "Mapping[str, tuple[Prompts, Prompts]]"
) -> "tuple[Side, Side]":
    """Both sides of a trial; no prompt tested on either side was used in a fit."""
    from mechheads.gating.contrast import Side, keep_apart
    from mechheads.prompts import Prompts

    def side(fitted: Sequence[Format], test: Format) -> Side:
        parts = [made[each.name][0] for each in fitted]
        pairs = tuple(pair for part in parts for pair in part.pairs)
        return Side(test.name, Prompts(test.name, parts[0].metric, pairs), made[test.name][1])

    return keep_apart(side(plan.retain, plan.tests[0]), side(plan.forget, plan.tests[1]))


def _two(text: str, flag: str) -> tuple[float, float]:
    values = read_list(text, float, flag)
    if len(values) != 2:
        raise MechheadsError(
            f"{flag} takes the first and the last learning rate, for example 0.5,0.1; got {text}."
        )
    return values[0], values[1]
