"""A damaged or forged checkpoint is one error, and changes neither parameters nor optimizer."""

import json
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from mechheads.errors import MechheadsError
from mechheads.training.checkpoints import restore, save
from mechheads.training.muon import Muon

SETTINGS = {"steps": 9, "rate": 0.1}
STATE = {"step": 4, "seconds": 1.5, "control": {"gap": 0.1}}
LAST = {"step": 9, "seconds": 0.0, "control": {"gap": 0.0}}


def begin() -> tuple[dict[str, torch.nn.Parameter], Muon]:
    """A matrix and a vector, and the optimizer of both."""
    matrix, vector = (torch.nn.Parameter(torch.ones(shape)) for shape in ((4, 4), (3,)))
    groups = [{"params": [matrix], "pieces": 1}, {"params": [vector], "pieces": 0}]
    return {"matrix": matrix, "vector": vector}, Muon(groups)


@pytest.fixture
def stored(tmp_path):
    """A checkpoint after a step: the file, its tensors and its metadata."""
    parameters, optimizer = begin()
    for parameter in parameters.values():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    file = tmp_path / "checkpoint.safetensors"
    save(file, parameters, optimizer, SETTINGS, STATE)
    with safe_open(file, "pt") as opened:
        return file, load_file(file), opened.metadata()


def test_it_comes_back_as_it_was(stored):
    file, tensors, _ = stored
    parameters, optimizer = begin()
    assert restore(file, parameters, optimizer, SETTINGS, LAST) == STATE
    assert torch.equal(parameters["matrix"], tensors["parameter.matrix"])
    assert torch.equal(optimizer.state[parameters["vector"]]["exp_avg"], tensors[
        "optimizer.1.exp_avg"
    ])  # fmt: skip


def lacks(name: str) -> Any:
    return lambda tensors, metadata: tensors.pop(name)


def tensor(name: str, value: torch.Tensor) -> Any:
    return lambda tensors, metadata: tensors.update({name: value})


def state(**changes: object) -> Any:
    return lambda tensors, metadata: metadata.update(state=json.dumps({**STATE, **changes}))


def text(name: str, value: str) -> Any:
    return lambda tensors, metadata: metadata.update({name: value})


DAMAGE = {
    "no state": (lambda tensors, metadata: metadata.pop("state"), "is damaged"),
    "no table": (text("state", "[1]"), "is damaged"),
    "deep": (text("settings", "[" * 100_000), "is damaged"),
    "no settings": (text("settings", "{}"), "was made with --steps None, not 9"),
    "long settings": (text("settings", json.dumps({"steps": "9" * 999})), r"--steps '9+\.\.\.'"),
    "step 0": (state(step=0), "it is of no step"),
    "step true": (state(step=True), "it is of no step"),
    "step text": (state(step="4"), "it is of no step"),
    "a step after the last": (state(step=10), "it is of no step"),
    "seconds": (state(seconds=float("nan")), "it is of no step"),
    "control": (state(control={"gap": "x"}), "it is of no step"),
    "other control": (state(control={"gap": 0.1, "x": 1}), "it is of no step"),
    "no control": (state(control=None), "it is of no step"),
    "no parameter": (lacks("parameter.matrix"), "is from a different model"),
    "other parameter": (tensor("parameter.matrix", torch.ones(4)), "is from a different model"),
    "not a number": (tensor("parameter.vector", torch.full((3,), torch.nan)), "not finite numbers"),
    "whole numbers": (tensor("parameter.vector", torch.ones(3).long()), "not finite numbers"),
    "no moment": (lacks("optimizer.0.momentum"), "it lacks optimizer state"),
    "half of the moments": (lacks("optimizer.1.exp_avg_sq"), "it lacks optimizer state"),
    "other moment": (tensor("optimizer.1.exp_avg", torch.ones(4)), "it lacks optimizer state"),
    "no count": (lacks("optimizer.1.step"), "it lacks optimizer state"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_one_error_and_loads_nothing(damage, stored):
    file, tensors, metadata = stored
    edit, message = DAMAGE[damage]
    edit(tensors, metadata)
    save_file(tensors, file, metadata)
    parameters, optimizer = begin()
    with pytest.raises(MechheadsError, match=message):
        restore(file, parameters, optimizer, SETTINGS, LAST)
    assert all(bool((parameter == 1).all()) for parameter in parameters.values())
    assert not optimizer.state


def test_names_that_are_no_moments_are_ignored(stored):
    file, tensors, metadata = stored
    save_file({**tensors, "optimizer.x": torch.ones(1), "optimizer.9.a.b": torch.ones(1)}, file,
              metadata)  # fmt: skip
    parameters, optimizer = begin()
    assert restore(file, parameters, optimizer, SETTINGS, LAST) == STATE
