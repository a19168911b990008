"""The whole experiment: every model's prompts are made and checked first, then all are answered."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mechheads.errors import MechheadsError
from mechheads.heads import check_heads
from mechheads.models.cache import keeping_models
from mechheads.models.model import Model, model_name, shape_of
from mechheads.progress import say
from mechheads.prompts import Question, Questions

from .accuracy import Accuracies, Answers, ask
from .conditions import Asked, values_of
from .insertion import Inserted, instructed, make, shared_places
from .redistribution import arm
from .weights import Attention, aligned, measure_attention

Made = Mapping[str, list[Inserted]]


@dataclass(frozen=True)
class Experiment:
    """All models' answers, sweeps, and attention where it could be measured.

    `notes` say what could not be asked or measured, and why.
    """

    accuracies: Accuracies
    attention: tuple[Attention, ...]
    sweeps: Mapping[str, Accuracies]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """All prompts of one model. Those of a sweep are None where they cannot be asked."""

    questions: tuple[Question, ...]
    prompts: Made
    sweeps: Mapping[str, Mapping[str, list[Inserted] | None]]
    attended: Made | None
    notes: tuple[str, ...]


def experiment(
    names: Sequence[str],
    load: Callable[[str], Model],
    questions: Callable[[str, Model], Questions],
    asked: Asked,
    *,
    quiet: bool = False,
) -> Experiment:
    """Nothing is answered before every model's prompts, heads and settings are known to fit."""
    with keeping_models():
        plans = {name: _plan(model := load(name), questions(name, model), asked) for name in names}
        answers, attention = [], []
        sweeps: dict[str, list[Answers]] = {kind: [] for kind in asked.sweeps}
        for name, plan in plans.items():
            model, common = load(name), {**asked.answering, "quiet": quiet}
            say(f"{name}: {len(plan.questions)} questions", quiet)
            answers.append(ask(model, plan.questions, plan.prompts, moved=asked.arm, **common))
            if plan.attended:
                attention.append(measure_attention(model, plan.attended, asked.head))
            for kind, prompts in plan.sweeps.items():
                say(f"{name}: sweep over the {kind}", quiet)
                sweeps[kind].append(ask(model, plan.questions, prompts, **common))
    return Experiment(
        Accuracies(tuple(answers)),
        tuple(attention),
        {kind: Accuracies(tuple(found), kind) for kind, found in sweeps.items()},
        tuple(note for plan in plans.values() for note in plan.notes),
    )


def _plan(model: Model, questions: Questions, asked: Asked) -> Plan:
    items, notes = questions.items, []
    if asked.head is not None:
        check_heads([asked.head], *shape_of(model).grid)
    if "arm" in asked.conditions:
        with arm(model, **asked.arm):
            pass
    prompts = {name: make(model, items, name, **asked.run) for name in asked.conditions}
    for made in prompts.values():
        _check_room(model, made, asked)
    try:
        attended = aligned(_attended(model, items, prompts, asked))
    except MechheadsError as error:
        attended = None
        notes.append(f"{model_name(model)}: no attention was measured: {error}")
    sweeps: dict[str, dict[str, list[Inserted] | None]] = {}
    for kind in asked.sweeps:
        sweeps[kind] = {}
        for value in values_of(kind, asked.run["filler"]):
            try:
                made = _varied(model, items, kind, value, asked)
                _check_room(model, made, asked)
            except MechheadsError as error:
                made = None
                notes.append(f"{model_name(model)}, {kind} {value}: not asked: {error}")
            sweeps[kind][str(value)] = made
    return Plan(items, prompts, sweeps, attended, tuple(notes))


def _attended(model: Model, items: Sequence[Question], prompts: Made, asked: Asked) -> Made:
    """The prompts whose attention is looked at: random places are the same in all of them."""
    names = [name for name in prompts if name != "arm"]
    if asked.run["place"] != "random":
        return {name: prompts[name] for name in names}
    texts = [instructed(item, asked.run["instruction"]) for item in items]
    places = shared_places(model, texts, asked.run["seed"])
    chosen: dict[str, Any] = {**asked.run, "places": list(places.values())}
    return {name: make(model, [items[i] for i in places], name, **chosen) for name in names}


def _varied(
    model: Model, items: Sequence[Question], kind: str, value: Any, asked: Asked
) -> list[Inserted]:
    if value == "none":
        return make(model, items, "none", **asked.run)
    return make(model, items, "mless", **{**asked.run, kind: value})


def _check_room(model: Model, made: Sequence[Inserted], asked: Asked) -> None:
    longest, more = max(len(p.ids) for p in made), asked.answering["max_tokens"]
    if longest + more > shape_of(model).context:
        raise MechheadsError(
            f"a prompt of {longest} tokens and an answer of up to {more} are more than "
            f"{model_name(model)} takes ({shape_of(model).context}). Use a smaller --length or "
            "--max-tokens, or shorter questions."
        )
