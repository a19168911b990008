"""Verb `prefix`: what a run of meaningless tokens does to accuracy and to a head's attention."""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from . import runs, sources
from .cli import run
from .errors import MechheadsError, unknown
from .heads import parse
from .progress import say
from .prompts import check_prompts, read_list

if TYPE_CHECKING:
    from .filler.accuracy import Accuracies, Answers
    from .filler.weights import Attention
    from .models import Model
    from .prompts import Question

CONDITIONS = ("none", "mless", "mful", "random", "arm")
PLACES = ("start", "between", "end", "random")
SWEEPS = ("place", "length", "filler")
LENGTHS = (0, 10, 20, 30, 40, 50, 60, 70)
FILLERS = ("/", "?", ".", "#", "*")


def prefix(
    *,
    task: str = "math_calculation",
    models: str = "mini",
    head: str = "auto",
    filler: str = "/",
    word: str = "he",
    length: int = 55,
    place: Literal["start", "between", "end", "random"] = "between",
    conditions: str = "none,mless,mful,random",
    sweep: str = "",
    n: int = 100,
    seed: int = 0,
    split: str = "test",
    max_tokens: int | None = None,
    arm_share: float = 0.02,
    arm_reach: float = 2.0,
    out: str = "runs",
    device: str | None = None,
    dtype: str = "float32",
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
        word: the meaningful word that is repeated instead, as often as makes as many tokens
        length: how often the filler is repeated
        place: start, between (instruction and question), end or random
        conditions: none, mless (the filler), mful (the word), random (random words), arm (no
            filler, the first layer's activations redistributed); a comma list
        sweep: also vary place, length or filler; a comma list
        n: questions
        seed: of the questions, random words and random places
        split: test, train (what our embedded models have seen) or all
        max_tokens: longest answer; default: 8, or 256 for a file of questions
        arm_share: share of the first layer's activations that arm moves
        arm_reach: how far it moves them, in units of the largest of them
        out: the folder that holds run folders
        device: cpu, cuda, cuda:1, mps; default: the best there is
        dtype: float32, float64, bfloat16 or float16
        budget: tokens per pass, which bounds memory; default: what suits the device
        quiet: no notices and no progress bar
        options: the task's own options
    """
    settings = runs.settings_of(locals())
    names = read_list(models, str, "--models")
    asked = check(task, names, conditions, sweep, n, length, head, filler, split, options)
    found = {name: sources.find(name, quiet=quiet) for name in names}
    folder = runs.folder_for(out, ["prefix", task, *names], settings)
    say(f"Loading {', '.join(names)} ...", quiet)
    from .filler.accuracy import Accuracies
    from .filler.report import write_filler
    from .models import load
    from .provenance import provenance
    from .reports import REPORT

    start = time.monotonic()
    answers, attention, origins = [], [], {}
    sweeps: dict[str, list[Answers]] = {name: [] for name in asked["sweep"]}
    for name in names:
        loaded = load(name, device=device, dtype=dtype, quiet=quiet)
        questions = make_questions(loaded, task, n, seed, split, options)
        experiment = _Experiment(loaded, questions.items, settings, quiet)
        say(f"{name}: {len(questions)} questions", quiet)
        answers.append(experiment.ask(asked["conditions"]))
        attention.append(experiment.attend(asked["conditions"], asked["head"]))
        for kind in sweeps:
            say(f"{name}: sweep over the {kind}", quiet)
            sweeps[kind].append(experiment.sweep(kind))
        origins[name] = provenance(loaded, found[name], [questions], seed)
    result = Accuracies(tuple(answers))
    swept = {kind: Accuracies(tuple(each), kind) for kind, each in sweeps.items()}
    origin = origins[names[0]] if len(names) == 1 else origins
    record = runs.Record("prefix", settings, headline(result, attention), origin)
    timings = {"seconds": time.monotonic() - start}
    sentence = in_words(result)
    runs.keep(
        folder,
        record,
        timings,
        lambda place: write_filler(place, result, attention, swept, record, sentence),
    )
    print(f"{sentence}\n{folder / REPORT}")


def check(
    task: str,
    names: list[str],
    conditions: str,
    sweep: str,
    n: int,
    length: int,
    head: str,
    filler: str,
    split: str,
    options: Mapping[str, str],
) -> dict[str, Any]:
    """What can be wrong is looked at before torch is imported; gives the lists that were read."""
    import tasks
    from tasks import free

    listed = read_list(conditions, str, "--conditions")
    for name in listed:
        if name not in CONDITIONS:
            raise unknown("condition", name, CONDITIONS)
    if "none" not in listed:
        raise MechheadsError("--conditions takes none among them, which the others are held to.")
    listed = ["none", *(name for name in dict.fromkeys(listed) if name != "none")]
    if not set(listed) & {"mless", "mful", "random"}:
        raise MechheadsError("--conditions takes mless, mful or random besides none.")
    swept = read_list(sweep, str, "--sweep") if sweep else []
    for name in swept:
        if name not in SWEEPS:
            raise unknown("sweep", name, SWEEPS)
    if len(set(names)) < len(names):
        raise MechheadsError(f"--models names one twice: {','.join(names)}.")
    check_prompts("--n", n)
    if length < 0:
        raise MechheadsError(f"--length takes 0 or more, got {length}.")
    if not filler.strip():
        raise MechheadsError("--filler takes text that is more than spaces.")
    if tasks.is_file(task):
        if options:
            raise MechheadsError(
                f"unknown flag --{next(iter(options))}: question files have no options."
            )
        free.from_file(task)
    else:
        tasks.check(task, n, split, dict(options))
    return {
        "conditions": listed,
        "sweep": swept,
        "head": None if head == "auto" else parse(head),
    }


def make_questions(
    model: "Model", task: str, n: int, seed: int, split: str, options: Mapping[str, str]
) -> Any:
    """The questions of all functions in a task or file, together."""
    from tasks import free

    from .models import lexicon
    from .prompts import Questions

    parts = free.questions(task, lexicon(model), n=n, seed=seed, split=split, **dict(options))
    items = tuple(question for part in parts for question in part.items)
    return Questions(task, items[:n])


def headline(found: "Accuracies", attention: "list[Attention]") -> dict[str, Any]:
    """The numbers of result.json."""
    from .heads import name_of

    numbers: dict[str, Any] = {}
    frame: Any = found.frame()
    for row in frame.itertuples():
        numbers[f"{row.model}, {row.condition}: accuracy"] = float(row.accuracy)
        if row.condition != "none":
            numbers[f"{row.model}, {row.condition}: p"] = float(row.p_value)
    for one in attention:
        numbers[f"{one.model}: head"] = name_of(*one.head)
        numbers[f"{one.model}: sink"] = one.sink
        for condition in one.runs:
            mechanism = one.mechanism(condition)
            if mechanism is not None and condition != "none":
                numbers[f"{one.model}, {condition}: attention on the run"] = mechanism.mass
                numbers[f"{one.model}, {condition}: common factor"] = mechanism.factor
    return numbers


def in_words(found: "Accuracies") -> str:
    """Accuracies, and whether any difference is significant."""
    frame: Any = found.frame()
    parts = []
    for model in dict.fromkeys(frame["model"]):
        rows = frame[frame["model"] == model]
        listed = ", ".join(f"{r.condition} {r.accuracy:.0%}" for r in rows.itertuples())
        parts.append(f"{model}: {listed}")
    changed = frame[frame["p_value"] < 0.05]
    if not len(changed):
        verdict = "No condition differs significantly from none."
    else:
        named = ", ".join(f"{r.condition} on {r.model}" for r in changed.itertuples())
        verdict = f"Significantly different from none (corrected p < 0.05): {named}."
    return f"Accuracy of {int(frame['n'].iloc[0])} questions. {'. '.join(parts)}. {verdict}"


class _Experiment:
    """One model and its questions, asked in several ways."""

    def __init__(
        self,
        model: "Model",
        questions: "tuple[Question, ...]",
        settings: Mapping[str, Any],
        quiet: bool,
    ) -> None:
        import tasks

        self.model, self.questions, self.settings, self.quiet = model, questions, settings, quiet
        file = tasks.is_file(settings["task"])
        self.answering: dict[str, Any] = {
            "max_tokens": settings["max_tokens"] or (256 if file else 8),
            "stop": ("\n\nQuestion:",) if file else ("\n",),
            "budget": settings["budget"],
        }

    def prompts(self, condition: str, **changes: Any) -> Any:
        from .filler.insertion import make

        keys = ("filler", "word", "length", "place", "seed")
        given = {key: self.settings[key] for key in keys} | changes
        return make(self.model, self.questions, condition, **given)

    def ask(self, conditions: list[str]) -> "Answers":
        from dataclasses import replace

        import torch

        from .filler.accuracy import ask
        from .filler.redistribution import arm

        plain = {name: self.prompts(name) for name in conditions if name != "arm"}
        found = ask(self.model, self.questions, plain, quiet=self.quiet, **self.answering)
        if "arm" not in conditions:
            return found
        moved = {"share": self.settings["arm_share"], "reach": self.settings["arm_reach"]}
        with arm(self.model, seed=self.settings["seed"], **moved):
            with_arm = ask(
                self.model,
                self.questions,
                {"arm": plain["none"]},
                quiet=self.quiet,
                **self.answering,
            )
        return replace(
            found,
            conditions=(*found.conditions, "arm"),
            right=torch.cat([found.right, with_arm.right]),
            said=(*found.said, *with_arm.said),
            tokens=(*found.tokens, 0),
        )

    def attend(self, conditions: list[str], head: tuple[int, int] | None) -> "Attention":
        from .filler.weights import measure_attention
        from .heads import check_heads

        if head is not None:
            check_heads([head], self.model.cfg.n_layers, self.model.cfg.n_heads)
        plain = {name: self.prompts(name) for name in conditions if name != "arm"}
        return measure_attention(self.model, plain, head)

    def sweep(self, kind: str) -> "Answers":
        from .filler.accuracy import ask

        values: dict[str, tuple[Any, ...]] = {
            "place": ("none", *PLACES),
            "length": LENGTHS,
            "filler": ("none", *dict.fromkeys((self.settings["filler"], *FILLERS))),
        }
        made = {str(value): self._varied(kind, value) for value in values[kind]}
        room = self.model.cfg.n_ctx - self.answering["max_tokens"]
        fitting = {v: each for v, each in made.items() if max(len(p.ids) for p in each) <= room}
        if len(fitting) < len(made):
            left = ", ".join(value for value in made if value not in fitting)
            say(f"{kind} {left}: longer than {self.model.cfg.model_name} takes", self.quiet)
        return ask(self.model, self.questions, fitting, quiet=self.quiet, **self.answering)

    def _varied(self, kind: str, value: Any) -> Any:
        if value == "none":
            return self.prompts("none")
        return self.prompts("mless", **{kind: value})


def notes() -> str:
    """Tasks with their own flags, for the help text."""
    from . import show

    return show.notes()


def flags() -> list[str]:
    """The names of all tasks' own options."""
    from . import show

    return show.task_flags()


if __name__ == "__main__":
    run(prefix, notes, flags)
