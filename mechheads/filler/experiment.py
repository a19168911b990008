"""The full filler experiment: make and check the prompts of all models, then answer them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mechheads.errors import MechheadsError
from mechheads.heads import check_heads, name_of
from mechheads.models.model import Model, model_name, shape_of
from mechheads.progress import stages
from mechheads.prompts import Question, Questions
from mechheads.runs.result import Result

from .accuracy import Accuracies, Answers, ask, ask_tokens
from .average_attention import Attention, aligned, measure_attention
from .conditions import Design, values_of
from .insertion import Inserted, instructed, make, shared_places
from .redistribution import arm

if TYPE_CHECKING:
    import pandas as pd

Made = Mapping[str, list[Inserted]]


@dataclass(frozen=True)
class Filler(Result):
    """All models' answers, sweeps, and attention where it could be measured.

    `notes` say what could not be asked or measured and why.
    """

    accuracies: Accuracies
    attention: tuple[Attention, ...]
    sweeps: Mapping[str, Accuracies]
    notes: tuple[str, ...]

    @property
    def headline(self) -> dict[str, Any]:
        """By model and condition: accuracy, its test, and what the filler does to attention."""
        parts: dict[str, dict[str, Any]] = {}
        frame: Any = self.accuracies.frame()
        for row in frame.itertuples():
            parts[f"{row.model}, {row.condition}"] = {
                "accuracy": float(row.accuracy),
                "cut_off": float(row.cut_off),
            } | ({} if row.condition == "none" else {"p": float(row.p_value)})
        for one in self.attention:
            for mechanism in one.mechanisms:
                parts.setdefault(f"{one.model}, {mechanism.condition}", {}).update(
                    head=name_of(*one.head),
                    sink=one.sink,
                    attention_on_the_run=mechanism.mass,
                    factor=mechanism.factor,
                    spread=mechanism.spread,
                    one_factor_per_query_p=mechanism.p_value,
                )
        return {"parts": parts}

    @property
    def sentence(self) -> str:
        """Accuracies, and whether any difference is significant."""
        return self.accuracies.sentence

    @property
    def warnings(self) -> tuple[str, ...]:
        """What could not be asked or measured."""
        return self.notes

    def frame(self) -> "pd.DataFrame":
        """One row per model and condition: accuracy, interval, p-value."""
        return self.accuracies.frame()


@dataclass(frozen=True)
class ModelPrompts:
    """All prompts of one model; those of a sweep are None where they cannot be asked."""

    questions: tuple[Question, ...]
    prompts: Made
    sweeps: Mapping[str, Mapping[str, list[Inserted] | None]]
    attended: Made | None
    notes: tuple[str, ...]


def filler_experiment(
    names: Sequence[str],
    load: Callable[[str], Model],
    questions: Callable[[str, Model], Questions],
    design: Design,
    *,
    quiet: bool = False,
) -> Filler:
    """Run the experiment, after checking the prompts, heads and settings of every model.

    `load` is called twice per model, so it should cache what it has loaded.
    """
    plans, sizes = {}, {}
    for name in names:
        model = load(name)
        plans[name] = _plan(model, questions(name, model), design)
        sizes[name] = float(shape_of(model).layers * shape_of(model).d_model ** 2)
        del model  # while one model runs, the others may be freed
    answers, attention = [], []
    sweeps: dict[str, list[Answers]] = {kind: [] for kind in design.sweeps}
    common = {**design.answering, "quiet": quiet}

    def run_model(model: Model, plan: ModelPrompts) -> None:
        longest = design.answering["max_tokens"]
        weights = {"Answering": ask_tokens(plan.prompts, longest)}
        if plan.attended:
            weights["Measuring attention"] = ask_tokens(plan.attended, 0)
        weights |= {f"Sweep over {k}": ask_tokens(p, longest) for k, p in plan.sweeps.items()}
        with stages("prefix", weights, quiet) as progress:
            with progress.stage("Answering"):
                answers.append(ask(model, plan.questions, plan.prompts, moved=design.arm, **common))
            if plan.attended:
                with progress.stage("Measuring attention"):
                    attention.append(measure_attention(model, plan.attended, design.head))
            for kind, prompts in plan.sweeps.items():
                with progress.stage(f"Sweep over {kind}"):
                    sweeps[kind].append(ask(model, plan.questions, prompts, **common))

    with stages("prefix", sizes, quiet) as progress:
        for name, plan in plans.items():
            with progress.stage(name):
                run_model(load(name), plan)
    return Filler(
        Accuracies(tuple(answers)),
        tuple(attention),
        {kind: Accuracies(tuple(found), kind) for kind, found in sweeps.items()},
        tuple(note for plan in plans.values() for note in plan.notes),
    )


def _plan(model: Model, questions: Questions, design: Design) -> ModelPrompts:
    items, notes = questions.items, []
    if design.head is not None:
        check_heads([design.head], *shape_of(model).grid)
    if "arm" in design.conditions:
        with arm(model, **design.arm):
            pass
    prompts = {name: make(model, items, name, **design.run) for name in design.conditions}
    for made in prompts.values():
        _check_room(model, made, design)
    try:
        attended = aligned(_attended(model, items, prompts, design))
    except MechheadsError as error:
        attended = None
        notes.append(f"{model_name(model)}: attention was not measured: {error}")
    sweeps: dict[str, dict[str, list[Inserted] | None]] = {}
    for kind in design.sweeps:
        sweeps[kind] = {}
        for value in values_of(kind, design.run["filler"]):
            try:
                made = _varied(model, items, kind, value, design)
                _check_room(model, made, design)
            except MechheadsError as error:
                made = None
                notes.append(f"{model_name(model)}, {kind} {value}: not asked: {error}")
            sweeps[kind][str(value)] = made
    return ModelPrompts(items, prompts, sweeps, attended, tuple(notes))


def _attended(model: Model, items: Sequence[Question], prompts: Made, design: Design) -> Made:
    """The prompts to measure attention on; random places are the same in all of them."""
    names = [name for name in prompts if name != "arm"]
    if design.run["place"] != "random":
        return {name: prompts[name] for name in names}
    texts = [instructed(item, design.run["instruction"]) for item in items]
    places = shared_places(model, texts, design.run["seed"])
    chosen: dict[str, Any] = {**design.run, "places": list(places.values())}
    return {name: make(model, [items[i] for i in places], name, **chosen) for name in names}


def _varied(
    model: Model, items: Sequence[Question], kind: str, value: Any, design: Design
) -> list[Inserted]:
    if value == "none":
        return make(model, items, "none", **design.run)
    return make(model, items, "mless", **{**design.run, kind: value})


def _check_room(model: Model, made: Sequence[Inserted], design: Design) -> None:
    longest, more = max(len(p.ids) for p in made), design.answering["max_tokens"]
    if longest + more > shape_of(model).context:
        raise MechheadsError(
            f"a prompt of {longest} tokens and an answer of up to {more} exceed the context of "
            f"{model_name(model)} ({shape_of(model).context}). Use a smaller --length or "
            "--max-tokens, or shorter questions."
        )
