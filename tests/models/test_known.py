"""The models whose heads are known: they do what their designs say, and nothing else."""

import pytest
import torch

import circuits
import tasks
from circuits.literature import published_for
from mechheads.errors import MechheadsError
from mechheads.models import locate
from mechheads.models.known.design import BEGIN, ONE, UNKNOWN, place, say, token
from mechheads.models.known.designs import DESIGNS
from mechheads.models.load import load
from mechheads.models.model import encoder_of, shape_of
from mechheads.observe.evaluation import evaluate
from mechheads.scoring.activation_patching import patch


def by_hand(design, ids):
    """Logits at the last position as the design's words say, without any model."""
    streams = []
    for i, token_id in enumerate(ids):
        streams.append({token(design.vocabulary[token_id]): 1.0, place(i): 1.0, ONE: 1.0})
    for layer in design.layers:
        written = [dict(stream) for stream in streams]
        for head in layer:
            for i, query in enumerate(streams):
                scores = torch.zeros(i + 1, dtype=torch.float64)
                for j, key in enumerate(streams[: i + 1]):
                    for asks, has, score in head.looks:
                        scores[j] += score * query.get(asks, 0.0) * key.get(has, 0.0)
                for weight, key in zip(scores.softmax(0).tolist(), streams, strict=False):
                    for source, to, copied in head.copies:
                        change = weight * copied * key.get(source, 0.0)
                        written[i][to] = written[i].get(to, 0.0) + change
        streams = written
    return [streams[-1].get(say(word), 0.0) for word in design.words]


@pytest.mark.parametrize("name", DESIGNS)
def test_the_weights_compute_what_the_design_says(name):
    design, model = DESIGNS[name], load(name)
    for pair in tasks.make(name, model, n=3, split="all").pairs:
        for text in (pair.clean, pair.corrupt):
            ids = encoder_of(model).ids(text)
            logits = model(torch.tensor([ids]))[0, -1, -len(design.words) :]
            torch.testing.assert_close(
                logits, torch.tensor(by_hand(design, ids)), rtol=1e-4, atol=1e-4
            )


@pytest.mark.parametrize("name", DESIGNS)
def test_every_known_model_answers_its_prompts_on_the_bridge_too(name):
    model = load(name, backend="bridge")
    prompts = tasks.make(name, model, n=64)
    found = evaluate(model, prompts, quiet=True)
    assert float(found.clean["accuracy"].mean()) == 1.0
    own = patch(model, prompts.first(4), quiet=True)
    hooked = patch(load(name), prompts.first(4), quiet=True)
    torch.testing.assert_close(own.values, hooked.values, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", DESIGNS)
def test_prompts_have_only_words_that_the_model_knows(name):
    model = load(name)
    special = {DESIGNS[name].vocabulary.index(word) for word in (BEGIN, UNKNOWN)}
    for pair in tasks.make(name, model, n=64).pairs:
        for text in (pair.clean, pair.corrupt, *pair.answers, *pair.wrong):
            assert not special & set(encoder_of(model).plain_ids(text))


@pytest.mark.parametrize("name", DESIGNS)
def test_idle_heads_have_no_effect(name):
    model, design = load(name), DESIGNS[name]
    prompts = tasks.make(name, model, n=16)
    for replacement in ("corrupt", "zero", "mean"):
        found = patch(model, prompts, replacement=replacement, quiet=True).scores
        idle = [head for head in shape_of(model).every_head if head not in design.roles]
        assert max(float(found[head].abs()) for head in idle) < 1e-4


@pytest.mark.parametrize("name", DESIGNS)
def test_the_roles_are_a_published_circuit_of_the_model(name):
    design = DESIGNS[name]
    model = load(name)
    assert shape_of(model).grid == design.grid
    (circuit,) = published_for(name, design.short, design.grid)
    assert circuit.roles == design.roles
    assert circuits.published(circuit.name) == circuit


def test_a_wrong_name_is_answered_with_the_right_ones():
    with pytest.raises(MechheadsError, match="Did you mean 'known/induction'"):
        locate.find("known/inducton")
    with pytest.raises(MechheadsError, match="Did you mean 'known/induction'"):
        tasks.make("known/inducton", load("mini"))
    with pytest.raises(MechheadsError, match="single tokens"):
        tasks.make("ioi", load("known/constant"))
