import itertools
import math

import pytest

from mechheads.benchmarks import sizes
from mechheads.benchmarks.sizes import AXES, Sized, exponent, exponents, measure_sizes, workload


def test_the_exponent_of_a_power_is_that_power():
    assert exponent([1, 2, 4, 8], [5 * x**1.5 for x in (1, 2, 4, 8)]) == pytest.approx(1.5)
    assert exponent([1, 2, 4], [7, 7, 7]) == 0
    assert math.isnan(exponent([1, 2], [0, 1]))


def test_along_each_axis_one_number_doubles_three_times():
    for axis, values in AXES.items():
        assert [b / a for a, b in itertools.pairwise(values)] == [2, 2, 2]
        works = [workload(axis, value, 1) for value in values]
        assert len({str(work) for work in works}) == 4
    assert workload("heads", 32, 1).shape["n_heads"] == 32
    assert workload("length", 128, 1).length == 128 <= sizes.SHAPE["n_ctx"]


def test_weights_are_those_of_attention_and_mlp():
    wide, deep = workload("width", 512, 1).shape, workload("layers", 8, 1).shape
    assert sizes.weights(wide) == 4 * (4 * 512 * 512 + 2 * 512 * 2048)
    assert sizes.weights(deep) == 8 * (4 * 256 * 256 + 2 * 256 * 1024)


def test_a_size_that_axes_share_is_measured_once(monkeypatch):
    seen = []

    def measured(folder, name, threads, backend):
        seen.append(name)
        return {"seconds": float(len(seen)), "memory": 20.0, "loaded": 10.0}

    monkeypatch.setattr(sizes, "run_ours", measured)
    monkeypatch.setattr(sizes.Workload, "write", lambda *_: None)
    found = measure_sizes(1, quiet=True)
    assert len(found) == 20
    assert seen == ["patch"] * 16
    assert {one.added for one in found} == {10.0}


def test_memory_that_is_not_told_apart_from_none_has_no_exponent():
    found = [Sized("layers", size, 1, 1, size**2.0, 100.2, 100.0) for size in (1, 2, 4)]
    found += [Sized("width", size, 1, 1, float(size), 100.0 + 8 * size, 100.0) for size in (1, 2)]
    (seconds, memory), other = exponents(found).values()
    assert seconds == 2
    assert math.isnan(memory)
    assert other == (1, 1)
