"""Verb `prefix`: what a run of meaningless tokens does to accuracy and to a head's attention."""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mechheads.cli.parse import run
from mechheads.errors import MechheadsError
from mechheads.filler.conditions import (
    ARM_C,
    ARM_PERCENTILE,
    INSTRUCTION,
    Asked,
    Place,
    read_conditions,
    read_sweeps,
)
from mechheads.heads import parse
from mechheads.models import locate
from mechheads.options import read_list
from mechheads.progress import say
from mechheads.prompts import check_prompts
from mechheads.runs import folder as runs

if TYPE_CHECKING:
    from mechheads.models.model import Model
    from mechheads.prompts import Questions


def prefix(
    *,
    task: str = "math_calculation",
    models: str = "mini",
    head: str = "auto",
    filler: str = "/",
    word: str = "he",
    length: int = 55,
    place: Place = "between",
    instruction: str | None = None,
    conditions: str = "none,mless,mful,random",
    sweep: str = "",
    n: int = 100,
    seed: int = 0,
    split: str = "test",
    max_tokens: int | None = None,
    arm_c: float = ARM_C,
    arm_percentile: float = ARM_PERCENTILE,
    out: str = "runs",
    device: str | None = None,
    dtype: str = "float32",
    n_devices: int = 1,
    budget: int | None = None,
    quiet: bool = False,
    **options: str,
) -> None:
    """Ask the same questions with and without a run of filler, and look at a head's attention.

    A run folder is written below --out; the last line is its report.

    Args:
        task: a built-in task (below), or a .jsonl file with question or problem, and answer
        models: mini, mini-sparse, smollm2, a model directory, a hub id, or a comma list of them
        head: L0H3, or auto: the head whose attention moves most
        filler: the meaningless text that is repeated
        word: the meaningful word that is repeated instead
        length: tokens of filler, in every condition that has some
        place: start, between (instruction and question), end or random
        instruction: what a file's questions begin with; default: to reason step by step and to put
            the answer within \\boxed{}; true or false for built-in tasks that have their own
        conditions: none, mless (the filler), mful (the word), random (random sentences), arm (no
            filler, the first layer's activations redistributed); a comma list
        sweep: also vary place, length or filler; a comma list
        n: questions
        seed: of the questions, random sentences, random places, and arm
        split: test, train (what our embedded models have seen) or all
        max_tokens: longest answer; default: 8, or 256 for a file of questions
        arm_c: how near to zero activations are that arm moves
        arm_percentile: of the activations, up to which it moves them
        out: the folder that holds run folders
        device: cpu, cuda, cuda:1, mps; default: the best there is
        dtype: float32, float64, bfloat16 or float16
        n_devices: GPUs to spread the layers over
        budget: tokens per pass, which bounds memory; default: what suits the device
        quiet: no notices and no progress bar
        options: the task's own options
    """
    settings = runs.settings_of(locals())
    options = own_options(task, instruction, options)
    names = read_list(models, str, "--models")
    asked = check(settings, names, options)
    found = {name: locate.find(name, quiet=quiet) for name in names}
    folder = runs.folder_for(out, ["prefix", task, *names], settings)
    say(f"Loading {', '.join(names)} ...", quiet)
    from mechheads.filler.experiment import experiment
    from mechheads.filler.report import headline, in_words, write_filler
    from mechheads.models.load import load
    from mechheads.models.provenance import provenance
    from mechheads.reports.run import REPORT

    start, origins = time.monotonic(), {}

    def questions(name: str, model: "Model") -> "Questions":
        made = make_questions(model, task, n, seed, split, options)
        origins[name] = provenance(model, found[name], [made], seed)
        return made

    result = experiment(
        names,
        lambda name: load(name, device=device, dtype=dtype, n_devices=n_devices, quiet=quiet),
        questions,
        asked,
        quiet=quiet,
    )
    origin = origins[names[0]] if len(names) == 1 else origins
    record = runs.Record("prefix", settings, headline(result), origin)
    timings = {"seconds": time.monotonic() - start}
    sentence = in_words(result.accuracies)
    runs.keep(
        folder,
        record,
        timings,
        lambda place: write_filler(place, result, record, sentence),
    )
    print("\n".join([sentence, *result.notes, str(folder / REPORT)]))


def own_options(task: str, instruction: str | None, options: dict[str, str]) -> dict[str, str]:
    """The task's own options; --instruction is one of them where the task is built in."""
    import tasks

    if instruction is None or tasks.is_file(task):
        return options
    return {**options, "instruction": instruction}


def check(settings: Mapping[str, Any], names: list[str], options: Mapping[str, str]) -> Asked:
    """What can be wrong is looked at before torch is imported."""
    import tasks

    asked = read_conditions(settings["conditions"]), read_sweeps(settings["sweep"])
    head = None if settings["head"] == "auto" else parse(settings["head"])
    if len(set(names)) < len(names):
        raise MechheadsError(f"--models names one twice: {','.join(names)}.")
    check_prompts("--n", settings["n"])
    file = tasks.is_file(settings["task"])
    tokens = (256 if file else 8) if settings["max_tokens"] is None else settings["max_tokens"]
    if tokens < 1:
        raise MechheadsError(f"--max-tokens takes 1 or more, got {tokens}.")
    check_run(settings)
    instruction = check_task(settings, options)
    keys = ("filler", "word", "length", "place", "seed")
    return Asked(
        *asked,
        head,
        {key: settings[key] for key in keys} | {"instruction": instruction},
        {
            "c": settings["arm_c"],
            "percentile": settings["arm_percentile"],
            "seed": settings["seed"],
        },
        {
            "max_tokens": tokens,
            "stop": ("\n\nQuestion:",) if file else ("\n",),
            "budget": settings["budget"],
        },
    )


def check_run(settings: Mapping[str, Any]) -> None:
    """An error names what no run can be made of, or what ARM cannot take."""
    length, c, percentile = (settings[key] for key in ("length", "arm_c", "arm_percentile"))
    if length < 0:
        raise MechheadsError(f"--length takes 0 or more, got {length}.")
    if length == 0 and settings["head"] == "auto":
        raise MechheadsError("--head auto takes a --length above 0: without filler no head moves.")
    for flag in ("filler", "word"):
        if not settings[flag].strip():
            raise MechheadsError(f"--{flag} takes text that is more than spaces.")
    if not c >= 0:
        raise MechheadsError(f"--arm-c takes 0 or more, got {c}.")
    if not 0 < percentile <= 100:
        raise MechheadsError(f"--arm-percentile takes more than 0 up to 100, got {percentile}.")


def check_task(settings: Mapping[str, Any], options: Mapping[str, str]) -> str:
    """An error names what the task or file cannot take; gives the instruction of its prompts."""
    import tasks
    from tasks import questions as question_files

    task, instruction = settings["task"], settings["instruction"]
    if not tasks.is_file(task):
        tasks.check(task, settings["n"], settings["split"], dict(options))
        return ""
    if options:
        raise MechheadsError(
            f"unknown flag --{next(iter(options))}: question files have no options."
        )
    question_files.from_file(task)
    return INSTRUCTION if instruction is None else instruction.strip()


def make_questions(
    model: "Model", task: str, n: int, seed: int, split: str, options: Mapping[str, str]
) -> "Questions":
    """The questions of all functions in a task or file, together."""
    from mechheads.prompts import Questions, lexicon_of
    from tasks import questions as question_files

    parts = question_files.questions(
        task, lexicon_of(model), n=n, seed=seed, split=split, **dict(options)
    )
    items = tuple(question for part in parts for question in part.items)
    return Questions(task, items[:n])


def notes() -> str:
    """Tasks with their own flags, for the help text."""
    from mechheads import show

    return show.notes()


def flags() -> list[str]:
    """The names of all tasks' own options."""
    from mechheads import show

    return show.task_flags()


if __name__ == "__main__":
    run(prefix, notes, flags)
