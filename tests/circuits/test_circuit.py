"""Circuits compare, save and load; rankings are judged against them."""

import itertools
import math
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


def test_auroc_is_the_share_of_pairs_in_order_and_half_of_those_that_tie():
    """By its definition over all pairs, as sklearn's roc_auc_score."""
    heads = [(layer, head) for layer in range(3) for head in range(4)]
    truth = Circuit("truth", tuple(heads[::3]))
    for seed, values in itertools.product(range(5), (2, 4, 1000)):
        draw = random.Random(seed)
        scores = {head: draw.randrange(values) / 7 for head in heads}
        pairs = [
            (scores[a] > scores[b]) + (scores[a] == scores[b]) / 2
            for a, b in itertools.product(heads, heads)
            if a in truth.heads and b not in truth.heads
        ]
        assert auroc(scores, truth) == pytest.approx(sum(pairs) / len(pairs))
    best = {head: float(head in truth.heads) for head in heads}
    assert auroc(best, truth) == 1.0
    assert auroc({head: -score for head, score in best.items()}, truth) == 0.0
    assert auroc(dict.fromkeys(heads, 0.0), truth) == 0.5
    for none in (Circuit("none", ()), Circuit("all", tuple(heads))):
        assert math.isnan(auroc(best, none))
