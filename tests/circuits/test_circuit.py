"""Circuits compare, save and load; rankings are judged against them."""

import itertools
import random

import pytest

from circuits.circuit import Circuit, auroc
from mechheads.errors import MechheadsError

ONE = Circuit("one", ((0, 1), (2, 3), (4, 5)), "ioi", "gpt2", {(2, 3): "mover <b>"}, "a paper")
TWO = Circuit("two", ((2, 3), (4, 5), (6, 7), (8, 9)))


def test_overlap_is_counted_by_hand():
    assert ONE.jaccard(TWO) == TWO.jaccard(ONE) == 2 / 5
    assert ONE.precision(TWO) == TWO.recall(ONE) == 2 / 3
    assert TWO.precision(ONE) == ONE.recall(TWO) == 2 / 4
    assert ONE.jaccard(ONE) == 1.0
    empty = Circuit("empty", ())
    assert empty.jaccard(empty) == 1.0
    assert empty.jaccard(ONE) == empty.precision(ONE) == 0.0


def test_a_saved_circuit_is_the_same_again(tmp_path):
    assert Circuit.load(ONE.save(tmp_path / "one.json")) == ONE


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"schema": 2}', '{"schema": 1, "heads": [{"layer": 1}]}']
)
def test_a_damaged_file_is_named(text, tmp_path):
    file = tmp_path / "broken.json"
    file.write_text(text)
    with pytest.raises(MechheadsError, match=r"broken\.json is not a valid circuit"):
        Circuit.load(file)
    with pytest.raises(MechheadsError, match="is not a valid circuit"):
        Circuit.load(tmp_path / "missing.json")


def test_auroc_is_the_share_of_pairs_in_order():
    heads = [(layer, head) for layer in range(3) for head in range(4)]
    truth = Circuit("truth", tuple(heads[::3]))
    for seed in range(5):
        ranking = random.Random(seed).sample(heads, len(heads))
        pairs = [
            (a, b)
            for a, b in itertools.product(heads, heads)
            if a in truth.heads and b not in truth.heads
        ]
        wanted = sum(ranking.index(a) < ranking.index(b) for a, b in pairs) / len(pairs)
        assert auroc(ranking, truth) == pytest.approx(wanted)
    best = [*truth.heads, *(h for h in heads if h not in truth.heads)]
    assert auroc(best, truth) == 1.0
    assert auroc(best[::-1], truth) == 0.0
    assert auroc(heads, Circuit("none", ())) != auroc(heads, Circuit("none", ()))
