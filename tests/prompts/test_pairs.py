"""Facts about splitting prompts and questions."""

import random

import pytest

from mechheads import MechheadsError
from mechheads.prompts import Pair, Prompts, Question, Questions, split_groups


def test_a_split_has_as_many_as_asked_and_leaves_none_out():
    one, two = split_groups(list("aabbbcd"), 3)
    assert (one, two) == ([0, 1, 5], [2, 3, 4, 6])


def test_a_group_too_large_for_the_last_places_stays_on_the_other_side():
    assert split_groups(list("aaabbb"), 4) == ([0, 1, 2], [3, 4, 5])


@pytest.mark.parametrize("n", range(0, 40, 7))
def test_no_group_is_on_both_sides(n):
    rng = random.Random(n)
    groups = [str(rng.randrange(12)) for _ in range(40)]
    one, two = split_groups(groups, n)
    assert sorted(one + two) == list(range(40))
    assert len(one) <= n
    assert not {groups[i] for i in one} & {groups[i] for i in two}


def test_pairs_without_a_group_are_split_by_their_clean_prompts():
    pairs = [Pair(f"p{i // 2}", f"c{i}", (" a",), (" b",)) for i in range(8)]
    one, two = Prompts("own", "logit_diff", tuple(pairs)).split_at(4)
    assert not {p.clean for p in one.pairs} & {p.clean for p in two.pairs}
    assert len(one) == len(two) == 4


def test_questions_and_their_pairs_are_split_alike():
    pairs = tuple(Pair(f"p{i}", f"c{i}", (" a",), (" b",), f"g{i % 3}") for i in range(9))
    items = tuple(Question(pair.clean, ("a",), "f", pair.group) for pair in pairs)
    for part in Questions("f", items, Prompts("t", "logit_diff", pairs)).split_at(6):
        assert part.prompts is not None
        assert [item.prompt for item in part.items] == [p.clean for p in part.prompts.pairs]


def test_prompts_are_iterated_indexed_sliced_filtered_and_added():
    pairs = tuple(Pair(f"p{i}", f"c{i}", (" a",), (" b",)) for i in range(6))
    prompts = Prompts("own", "logit_diff", pairs, seed=3)
    assert [pair.clean for pair in prompts] == ["p0", "p1", "p2", "p3", "p4", "p5"]
    assert prompts[-1] == pairs[5]
    assert prompts[1:3] == Prompts("own", "logit_diff", pairs[1:3], seed=3)
    assert prompts.filter(lambda pair: pair.clean > "p3").pairs == pairs[4:]
    assert (prompts[:2] + prompts[2:]) == prompts
    assert (prompts + Prompts("b", "logit_diff", ())).task == "own+b"
    with pytest.raises(MechheadsError, match=r"own is measured by logit_diff and b by top1"):
        _ = prompts + Prompts("b", "top1", pairs)
    assert prompts._repr_html_().count("<tr") == 7
