"""The job of `prefix`: the same questions with and without filler tokens."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mechheads.cli.commands import COMMANDS
from mechheads.errors import MechheadsError
from mechheads.filler.conditions import ARM_PMAX, INSTRUCTION, Design, read_conditions, read_sweeps
from mechheads.heads import parse
from mechheads.models.cache import ModelCache
from mechheads.models.locate import check_distinct
from mechheads.models.options import ModelOptions
from mechheads.options import check_least, flag_of, pick, read_list
from mechheads.prompts import Questions, check_prompts
from tasks import questions
from tasks import registry as tasks

from .run import Job, Measured, Session

if TYPE_CHECKING:
    from mechheads.models.model import Model


def prepare(settings: Mapping[str, Any], quiet: bool = False) -> Job:
    """Check the settings; needs no torch."""
    names = read_list(settings["models"], str, "--models")
    options = own_options(settings)
    design = check(settings, names, options)
    loading = pick(ModelOptions, settings)
    sources = {name: loading.find(name, quiet) for name in names}
    check_distinct("--models", sources.values())

    def measure(session: Session) -> Measured:
        from mechheads.filler.experiment import filler_experiment
        from mechheads.models.provenance import provenance

        origins, models = {}, session.models or ModelCache()

        def ask(name: str, model: "Model") -> Questions:
            made = make_questions(model, settings, options)
            origins[name] = provenance(model, sources[name], [made], settings["seed"])
            return made

        def load(name: str) -> "Model":
            return loading.load(name, models, session.quiet)

        found = filler_experiment(names, load, ask, design, quiet=session.quiet)
        return Measured(found, origins[names[0]] if len(names) == 1 else origins)

    return Job(["prefix", settings["task"], *names], names, settings, measure)


def own_options(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The task's options; --instruction is one of them if the task is built in."""
    options = COMMANDS["prefix"].own_options(settings)
    if settings["instruction"] is None or tasks.is_file(settings["task"]):
        return options
    return {**options, "instruction": settings["instruction"]}


def check(settings: Mapping[str, Any], names: Sequence[str], options: Mapping[str, Any]) -> Design:
    """The design of the experiment, or an error."""
    conditions, sweeps = read_conditions(settings["conditions"]), read_sweeps(settings["sweep"])
    head = None if settings["head"] == "auto" else parse(settings["head"])
    if len(set(names)) < len(names):
        raise MechheadsError(f"--models lists a model twice: {','.join(names)}.")
    check_prompts("--n", settings["n"])
    file = tasks.is_file(settings["task"])
    tokens = (256 if file else 8) if settings["max_tokens"] is None else settings["max_tokens"]
    check_least("--max-tokens", tokens, 1)
    check_run(settings)
    instruction = check_task(settings, options)
    keys = ("filler", "word", "length", "place", "seed")
    return Design(
        conditions,
        sweeps,
        head,
        {key: settings[key] for key in keys} | {"instruction": instruction},
        {
            "c": settings["arm_c"],
            "percentile": settings["arm_percentile"],
            "pmin": settings["arm_pmin"],
            "seed": settings["seed"],
        },
        {
            "max_tokens": tokens,
            "stop": ("\n\nQuestion:",) if file else ("\n",),
            "budget": settings["budget"],
        },
    )


def check_run(settings: Mapping[str, Any]) -> None:
    """Raise an error if a filler or ARM setting is invalid."""
    length, c, percentile = (settings[key] for key in ("length", "arm_c", "arm_percentile"))
    pmin = settings["arm_pmin"]
    check_least("--length", length, 0)
    if length == 0 and settings["head"] == "auto":
        raise MechheadsError(
            "--head auto needs a --length above 0: without filler, no head's attention changes."
        )
    for flag in ("filler", "word"):
        if not settings[flag].strip():
            raise MechheadsError(f"--{flag} takes non-blank text, got {settings[flag]!r}.")
    check_least("--arm-c", c, 0)
    if not 0 < percentile <= 100:
        raise MechheadsError(f"--arm-percentile takes more than 0 and up to 100, got {percentile}.")
    if pmin is not None and not 0 <= pmin <= ARM_PMAX:
        raise MechheadsError(f"--arm-pmin takes 0 to {ARM_PMAX}, the largest share, got {pmin}.")


def check_task(settings: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    """The instruction before a file's questions, or an error about the task."""
    task, instruction = settings["task"], settings["instruction"]
    if not tasks.is_file(task):
        tasks.check(task, settings["n"], settings["split"], dict(options))
        return ""
    if options:
        raise MechheadsError(
            f"unknown flag {flag_of(next(iter(options)))}: question files have no options."
        )
    questions.from_file(task)
    return INSTRUCTION if instruction is None else instruction.strip()


def make_questions(
    model: "Model", settings: Mapping[str, Any], options: Mapping[str, Any]
) -> Questions:
    """The questions of all functions in a task or file, together."""
    task, n = settings["task"], settings["n"]
    parts = questions.make_questions(
        task, model, n=n, seed=settings["seed"], split=settings["split"], **dict(options)
    )
    items = tuple(question for part in parts for question in part.items)
    return Questions(task, items[:n])
