"""Every measure in other dtypes: the numbers of float32, within what the dtype can hold."""

from functools import cache
from typing import Any

import pytest
import torch

import mechheads
import tasks
from circuits import discover
from mechheads.errors import MechheadsError
from mechheads.models.devices import find_dtype
from mechheads.models.model import Model
from mechheads.prompts import Prompts
from mechheads.scoring.registry import METHODS

FEW: dict[str, Any] = {"gating": {"updates": 3, "seeds": 1}}
# bfloat16 is not among them: some CPUs claim instructions for it that they do not have.
APART = {"float64": 1e-4, "float16": 0.03}


@cache
def asked(dtype: str) -> tuple[Model, Prompts]:
    """The embedded model, and prompts for it."""
    model = mechheads.load("mini", dtype=dtype, quiet=True)
    return model, tasks.make("ioi", model, n=8, seed=0)


@pytest.mark.parametrize("dtype", APART)
# Ranks jump where two heads are almost equal: an ensemble is tested by its members.
@pytest.mark.parametrize("method", [name for name in METHODS if name != "ensemble"])
def test_every_method_finds_what_it_finds_in_float32(method, dtype):
    wanted, found = (
        mechheads.score_heads(*asked(kind), method, quiet=True, **FEW.get(method, {})).scores
        for kind in ("float32", dtype)
    )
    assert found.dtype == torch.float32
    wide = 5 if method == "gating" else 1  # the first steps of a fit go by the slopes' signs
    assert (found - wanted).abs().max() < wide * APART[dtype] * wanted.abs().max()
    assert (found != wanted).any()


@pytest.mark.parametrize("dtype", APART)
def test_a_circuit_and_its_judgement_are_the_same_too(dtype):
    # The same ranking: two heads that are almost equal may be ranked either way.
    model, prompts = asked("float32")
    ranking = mechheads.score_heads(model, prompts.halves()[0], quiet=True)
    wanted, found = (
        discover(*asked(kind), effects=ranking, draws=2, quiet=True) for kind in ("float32", dtype)
    )
    assert found.curve.explained == pytest.approx(wanted.curve.explained, abs=APART[dtype])
    assert found.headline["accuracy"] == wanted.headline["accuracy"]


def test_a_dtype_has_several_names_and_others_are_refused():
    assert {find_dtype(n) for n in ("float16", "torch.float16", torch.float16)} == {torch.float16}
    with pytest.raises(MechheadsError, match="Did you mean 'float16'"):
        find_dtype("float15")


def test_a_budget_of_nothing_is_refused():
    for wrong in (0, -5):
        with pytest.raises(MechheadsError, match=f"--budget takes 1 or more .* got {wrong}"):
            mechheads.score_heads(*asked("float32"), "patch", budget=wrong)
