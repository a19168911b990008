import numpy as np
import pytest
import torch

from circuits import Circuit, faithfulness, published
from mechheads import MechheadsError
from mechheads.heads import check_heads, count_of, listed, read_heads


@pytest.mark.parametrize(
    "heads",
    ["L9H6,L9H9", ["L9H6", "L9H9"], [(9, 6), (9, 9)], ((9, 6), "l9h9"), Circuit("c", "L9H6,L9H9")],
)
def test_heads_in_any_spelling(heads):
    assert read_heads(heads) == [(9, 6), (9, 9)]


def test_arrays_of_pairs_are_heads():
    """What torch.nonzero and numpy.argwhere give."""
    effects = torch.zeros(10, 10)
    effects[9, 6] = effects[9, 9] = 1
    for heads in (effects.nonzero(), np.argwhere(effects.numpy())):
        assert read_heads(heads) == [(9, 6), (9, 9)]
    assert read_heads(torch.tensor([9, 6])) == [(9, 6)]


def test_one_head_and_none():
    assert read_heads("L3H4") == read_heads((3, 4)) == read_heads([3, 4]) == [(3, 4)]
    assert read_heads([]) == read_heads("") == []


@pytest.mark.parametrize("heads", ["9.6", 9, [9, 6, 3], [("9", "6")], "L9", [None], {"L9": 1}, 2.5])
def test_what_is_no_head_is_named(heads):
    with pytest.raises(MechheadsError, match="is not a head"):
        read_heads(heads)


def test_heads_in_words():
    heads = [(3, 4), (3, 6), (2, 7)]
    assert listed([]) == ""
    assert [listed(heads[:n]) for n in (1, 2)] == ["L3H4", "L3H4 and L3H6"]
    assert listed(heads) == "L3H4, L3H6 and L2H7"
    assert listed(heads, most=2, last="or") == "L3H4 or 2 more"
    assert [count_of(heads[:n]) for n in (1, 2)] == ["1 head", "2 heads"]
    with pytest.raises(MechheadsError, match=r"^There is no L3H6 or L2H7: layers are 0 to 3"):
        check_heads([(3, 4), (3, 6), (2, 7)], 4, 5)


def test_a_circuit_of_names(tmp_path):
    circuit = Circuit("mine", ["L9H6", (9, 9)])
    assert circuit.heads == ((9, 6), (9, 9))
    file = circuit.save(str(tmp_path / "deep" / "mine.json"))
    assert Circuit.load(str(file)) == circuit
    assert 0 < circuit.jaccard(published("ioi_gpt2_small")) < 1
    with pytest.raises(MechheadsError, match="L9H6 is in the circuit twice"):
        Circuit("twice", "L9H6,L9H6")


def test_a_circuit_is_judged_by_its_heads_in_any_spelling(planted):
    import tasks

    prompts = tasks.make("ioi", planted, n=8)
    one, two = (
        faithfulness(planted, prompts, c, quiet=True) for c in ("L0H1,L1H2", [(0, 1), (1, 2)])
    )
    assert one.faithfulness == two.faithfulness == pytest.approx(1, abs=1e-4)
    with pytest.raises(MechheadsError, match="There is no L7H0: layers are 0 to 1"):
        faithfulness(planted, prompts, "L7H0", quiet=True)
