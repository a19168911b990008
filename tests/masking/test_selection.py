"""Which heads are masked: sizes, random sets, their overlap, and the elbow."""

import math

import pytest

from mechheads.errors import MechheadsError
from mechheads.masking.selection import elbow, overlap, random_heads, read_sizes


def test_sizes_are_numbers_shares_or_what_fits():
    assert read_sizes("16,2", 32) == (2, 16)
    assert read_sizes("10%,50%", 270) == (27, 135)
    assert read_sizes(None, 32) == (1, 2, 4, 8)
    assert read_sizes(None, 270) == (8, 16, 32, 64)
    assert read_sizes(None, 3) == (1,)
    for wrong in ("0", "33", "x", "150%", "", "nan%", "inf%", "nan"):
        with pytest.raises(MechheadsError, match="--k"):
            read_sizes(wrong, 32)
    with pytest.raises(MechheadsError, match="--matrix-k 33"):
        read_sizes("33", 32, "--matrix-k")


def test_random_heads_are_never_top_heads():
    ranking = [(i, j) for i in range(4) for j in range(8)]
    for k in (1, 8, 15):
        drawn = random_heads(ranking, k, 12, seed=1)
        assert len({frozenset(heads) for heads in drawn}) == 12
        for heads in drawn:
            assert len(set(heads)) == k
            assert not set(heads) & set(ranking[:k])
    assert random_heads(ranking, 8, 5, seed=1) == random_heads(ranking, 8, 12, seed=1)[:5]
    with pytest.raises(MechheadsError, match="fewer than 17 other heads"):
        random_heads(ranking, 17, 1, seed=1)


def test_there_are_as_many_draws_as_sets():
    ranking = [(0, i) for i in range(8)]
    (only,) = random_heads(ranking, 4, 5, seed=0)
    assert set(only) == set(ranking[4:])
    assert len(random_heads(ranking, 3, 50, seed=0)) == 10  # 3 of 5


def test_another_functions_heads_are_spared_where_enough_remain():
    ranking = [(0, i) for i in range(8)]
    for heads in random_heads(ranking, 2, 5, seed=0, spared=[(0, 2), (0, 3)]):
        assert set(heads) <= set(ranking[4:])
    assert random_heads(ranking, 2, 5, 0, ranking[2:7]) == random_heads(ranking, 2, 5, 0)


def test_overlap_is_the_share_of_common_heads():
    assert overlap([[(0, 0), (0, 1)], [(0, 1), (0, 2)], [(0, 3), (0, 4)]]) == pytest.approx(1 / 6)
    assert math.isnan(overlap([[(0, 0)]]))


def test_the_elbow_of_a_bent_line():
    assert elbow([10.0, 9.0, 8.0, 1.0, 0.9, 0.8, 0.7]) == 3
    assert elbow([1.0, 1.0, 1.0]) == 3
