"""Results are saved without loss, and what cannot be read is named."""

from dataclasses import dataclass

import pytest
import torch
from pairs import random_pairs

from circuits.curve import Curve, explained_effect_curve
from mechheads.errors import MechheadsError
from mechheads.observe.evaluation import Evaluation, evaluate
from mechheads.runs.result import ARRAYS
from mechheads.runs.serialization import load_result, save_result
from mechheads.scoring.activation_patching import patch
from mechheads.scoring.effects import HeadEffects


@dataclass(frozen=True)
class Inner:
    """A part of a result."""

    values: torch.Tensor


@dataclass(frozen=True)
class Outer:
    """A result with another inside, and one that may be missing."""

    inner: Inner
    missing: Inner | None
    names: tuple[tuple[str, int], ...]


def test_effects_come_back_as_they_were(tiny, tmp_path):
    effects = patch(tiny, random_pairs(tiny, 2))
    again = HeadEffects.load(effects.save(tmp_path / "effects"))
    assert torch.equal(again.values, effects.values)
    assert (again.task, again.method, again.settings) == (
        effects.task,
        effects.method,
        effects.settings,
    )
    assert again.frame().equals(effects.frame())


def test_curves_come_back_as_they_were(tiny, tmp_path):
    ranking = [divmod(i, 4) for i in range(8)]
    curve = explained_effect_curve(tiny, random_pairs(tiny, 2), ranking, draws=2)
    again = Curve.load(curve.save(tmp_path / "curve"))
    assert again.ranking == curve.ranking
    assert again.frame().equals(curve.frame())


def test_tables_of_tensors_come_back_in_their_order(tiny, tmp_path):
    evaluation = evaluate(tiny, random_pairs(tiny, 2))
    again = load_result(Evaluation, save_result(evaluation, tmp_path / "e.safetensors"))
    assert list(again.clean) == list(evaluation.clean)
    assert again.frame().equals(evaluation.frame())


def test_results_inside_of_results_and_none_come_back(tmp_path):
    outer = Outer(Inner(torch.arange(3.0)), None, (("a", 1), ("b", 2)))
    again = load_result(Outer, save_result(outer, tmp_path / "o.safetensors"))
    assert torch.equal(again.inner.values, outer.inner.values)
    assert again.missing is None
    assert again.names == outer.names


@dataclass(frozen=True)
class Newer:
    """Inner, of a version that has one more field."""

    values: torch.Tensor
    added: torch.Tensor | None = None


def test_a_field_that_an_older_version_did_not_write_has_its_default(tmp_path):
    file = save_result(Inner(torch.arange(3.0)), tmp_path / "old.safetensors")
    file.write_bytes(file.read_bytes().replace(b"Inner", b"Newer"))  # as long, so still readable
    again = load_result(Newer, file)
    assert torch.equal(again.values, torch.arange(3.0))
    assert again.added is None


def test_equal_results_are_equal_bytes(tiny, tmp_path):
    files = [
        patch(tiny, random_pairs(tiny, 2)).save(tmp_path / name) / ARRAYS for name in ("a", "b")
    ]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_another_kind_a_damaged_file_and_no_file_are_refused(tiny, tmp_path):
    folder = patch(tiny, random_pairs(tiny, 2)).save(tmp_path / "effects")
    with pytest.raises(MechheadsError, match="does not hold a readable Curve"):
        Curve.load(folder)
    file = folder / ARRAYS
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(MechheadsError, match="does not hold a readable HeadEffects"):
        HeadEffects.load(folder)
    with pytest.raises(MechheadsError, match=r"There is no HeadEffects in .*nothing"):
        HeadEffects.load(tmp_path / "nothing")
