"""A circuit or a ranking of your own: held to what single masks give, by hand."""

import json
import random
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from pairs import random_pairs

from circuits import Circuit, Discovery, Faithfulness, discover, faithfulness
from mechheads.engine.head_subsets import keep_only, measure_subsets, nested
from mechheads.errors import MechheadsError
from mechheads.scoring.registry import score_heads

EVERY = [divmod(i, 4) for i in range(8)]
HEADS = ((1, 3), (0, 2), (1, 0))


@pytest.fixture(scope="module")
def sides(tiny):
    """Prompts to rank, and prompts to judge."""
    return random_pairs(tiny, 2, (8,) * 16).halves()


@pytest.fixture(scope="module")
def found(tiny, sides):
    return discover(tiny, *sides, circuit="L1H3,L0H2,L1H0", draws=4, seed=3, quiet=True)


def explained(model, prompts, keep):
    """f of masks, by hand."""
    ends = torch.stack([torch.zeros(2, 4), torch.ones(2, 4)])
    none, whole, *means = measure_subsets(model, prompts, torch.cat([ends, keep])).mean(1).tolist()
    return [(mean - none) / (whole - none) for mean in means]


def test_a_given_circuit_explains_and_leaves_what_single_masks_do(tiny, sides, found):
    assert found.search == "given"
    assert found.circuit.heads == found.faithfulness.heads == HEADS
    rest = [head for head in EVERY if head not in HEADS]
    masks = [keep_only(kept, 2, 4) for kept in (HEADS, rest, HEADS[1:])]
    inside, outside, without = explained(tiny, sides[1], torch.stack(masks))
    numbers = found.headline
    assert numbers["faithfulness"] == pytest.approx(inside, rel=1e-3)
    assert numbers["left_without"] == pytest.approx(outside, rel=1e-3)
    assert float(found.faithfulness.contribution[0]) == pytest.approx(inside - without, abs=1e-4)
    for name in ("faithfulness", "left"):
        value = numbers["left_without" if name == "left" else name]
        assert numbers[f"{name}_low"] <= value <= numbers[f"{name}_high"]


def test_it_stands_next_to_as_many_top_heads_and_random_ones(tiny, sides, found):
    ranking = score_heads(tiny, sides[0], "patch", quiet=True).ranking()
    rng = random.Random(3)
    orders = [rng.sample(EVERY, 8) for _ in range(4)]
    masks = torch.stack([nested(order, 2, 4)[3] for order in (ranking, *orders)])
    top, *others = explained(tiny, sides[1], masks)
    numbers = found.headline
    assert numbers["explained_by_top"] == pytest.approx(top, rel=1e-3)
    assert numbers["explained_by_random"] == pytest.approx(sum(others) / 4, rel=1e-3, abs=1e-4)
    said = found.sentence
    assert said.startswith("Your circuit (3 heads: L1H3, L0H2 and L1H0) explains ")
    assert f"The 3 strongest heads of the ranking (patch) explain {top:.0%}, 3 random heads" in said
    assert f"The ranking needs {found.needed} of 8 heads" in said


def test_the_circuit_we_would_choose_is_as_faithful_when_it_is_given(tiny, sides):
    ours = discover(tiny, *sides, draws=2, threshold=0.7, quiet=True)
    again = discover(tiny, *sides, draws=2, circuit=ours.circuit, quiet=True)
    assert torch.equal(again.faithfulness.values, ours.faithfulness.values)
    assert torch.equal(again.curve.values, ours.curve.values)
    assert again.circuit == ours.circuit
    assert "explained_by_top" not in ours.headline
    assert again.headline["explained_by_top"] == pytest.approx(ours.headline["faithfulness"], 1e-4)


def test_a_soft_circuit_keeps_its_gates(tiny, sides, tmp_path):
    gates = {(0, 2): 0.25, (1, 3): 0.75}
    soft = Circuit("soft", HEADS, gates=gates, roles={(0, 2): "mine"})
    found = discover(tiny, *sides, circuit=soft, draws=2, quiet=True)
    keep = keep_only(HEADS, 2, 4)
    for head, gate in gates.items():
        keep[head] = gate
    inside, outside = explained(tiny, sides[1], torch.stack([keep, 1 - keep]))
    assert found.headline["faithfulness"] == pytest.approx(inside, rel=1e-3)
    assert found.headline["left_without"] == pytest.approx(outside, rel=1e-3)
    assert found.size == 2  # 0.25 + 0.75 + 1
    assert "3 heads, gates that add up to 2.0" in found.sentence
    found.report(tmp_path)
    assert Circuit.load(tmp_path / "circuit.json") == soft == Discovery.load(tmp_path).circuit
    report = (tmp_path / "report.md").read_text()
    assert "gate" in report
    assert "mine" in report


def test_a_given_circuit_comes_back_and_a_forged_one_does_not(found, tmp_path):
    found.save(tmp_path / "a")
    again = Discovery.load(tmp_path / "a")
    assert again.headline == found.headline
    assert again.sentence == found.sentence
    assert again.circuit == found.circuit
    for forged in (
        replace(found, given_circuit=None),
        replace(found, search="top"),
        replace(found, given_circuit=Circuit("x", "L0H0").content),
        replace(found, given_circuit={"schema": 1, "heads": [{"layer": 0}]}),
    ):
        forged.save(tmp_path / "b")
        with pytest.raises(MechheadsError, match="does not hold a readable Discovery"):
            Discovery.load(tmp_path / "b")


def test_the_paths_of_a_circuit_are_a_figure_of_their_own(found):
    figure = found.plot(paths=True)
    assert figure.layout.title.text.endswith("effect on the logit difference")
    with pytest.raises(MechheadsError, match=r"paths of .* were not traced"):
        replace(found, paths=None).plot(paths=True)


def test_the_figure_has_a_star_at_the_circuit(found):
    star = found.plot().data[-1]
    assert star.name.startswith("your circuit")
    assert (star.x[0], star.y[0]) == (3, found.faithfulness.faithfulness)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"circuit": ""}, "The circuit has no heads"),
        ({"circuit": Circuit("empty", ())}, "The circuit has no heads"),
        ({"circuit": "L0H0,L2H0,L0H4"}, "There is no L2H0 or L0H4: layers are 0 to 1, heads 0"),
        ({"circuit": "L0H0,L0H0"}, "L0H0 is in the circuit twice"),
        ({"circuit": "ioi_gpt2_small"}, "is not a head"),
        ({"circuit": "L0H0", "k": 2}, "--circuit and --k cannot be combined"),
        ({"circuit": "L0H0", "search": "prune"}, "--circuit and --search cannot be combined"),
        ({"effects": torch.zeros(3, 4)}, "These effects are of 3 layers of 4 heads"),
        ({"effects": torch.full((2, 4), torch.inf)}, "are not all finite"),
        ({"effects": [1, 2]}, "a frame or a CSV file, got list"),
        ({"effects": "none.csv"}, r"cannot read none\.csv"),
    ],
)
def test_what_cannot_be_given_is_named(given, words, tiny, sides):
    with pytest.raises(MechheadsError, match=words) as caught:
        discover(tiny, *sides, draws=2, quiet=True, **given)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("gate", [-0.1, 1.1, float("nan")])
def test_a_gate_is_from_0_to_1_and_of_a_head_of_the_circuit(gate, tmp_path):
    with pytest.raises(MechheadsError, match="The gate of L0H1 is"):
        Circuit("c", "L0H1", gates={(0, 1): gate})
    with pytest.raises(MechheadsError, match="The gate of L0H2 is"):
        Circuit("c", "L0H1", gates={(0, 2): 0.5})
    file = Circuit("c", "L0H1", gates={(0, 1): 0.5}).save(tmp_path / "c.json")
    file.write_text(file.read_text().replace("0.5", json.dumps(gate)))
    with pytest.raises(MechheadsError, match=r"c\.json is not a valid circuit file \(The gate of"):
        Circuit.load(file)


def test_faithfulness_of_own_heads_is_drawn_tabled_and_saved(tiny, sides, tmp_path):
    found = faithfulness(tiny, sides[1], list(HEADS), quiet=True)
    assert found.sentence.startswith("The circuit of 3 heads explains")
    frame = found.frame()
    figure: Any = found.plot()
    assert frame[["layer", "head"]].to_numpy().tolist() == [list(head) for head in HEADS]
    assert list(figure.data[0].x) == ["L1H3", "L0H2", "L1H0"]
    assert figure.layout.yaxis.tickformat == "~%"  # 0.5% and 1% are two ticks, not both 1%
    found.save(tmp_path)
    again = Faithfulness.load(tmp_path)
    assert again.headline == found.headline
    assert again.frame().equals(frame)
    assert faithfulness(tiny, sides[1], "L0H1", quiet=True).sentence.startswith(
        "The circuit of 1 head explains"
    )
    with pytest.raises(MechheadsError, match="The circuit has no heads"):
        faithfulness(tiny, sides[1], [], quiet=True)


@pytest.mark.parametrize("kind", ["frame", "tensor", "file", "effects"])
def test_a_finished_ranking_gives_the_same_curve_and_circuit(kind, tiny, sides, tmp_path):
    ours = discover(tiny, *sides, method="attribution", draws=2, signed=True, quiet=True)
    frame = ours.effects.frame()
    frame.to_csv(tmp_path / "own.csv")
    given = {
        "frame": frame,
        "tensor": ours.effects.scores,
        "file": tmp_path / "own.csv",
        "effects": ours.effects,
    }[kind]
    again = discover(tiny, *sides, effects=given, draws=2, signed=True, quiet=True)
    assert again.effects.ranking(signed=True) == ours.effects.ranking(signed=True)
    assert torch.equal(again.curve.values, ours.curve.values)
    assert again.circuit == ours.circuit
    assert again.needed == ours.needed
    if kind == "effects":
        assert again.effects.method == "attribution"
    else:
        assert again.effects.method == ("given" if kind == "tensor" else again.effects.method)
        assert again.effects.headline["significant"] is again.headline["overlap"] is None
        assert "no p-values" in again.effects.sentence


def test_scores_without_intervals_show_no_nan(tiny, sides, tmp_path):
    found = discover(tiny, *sides, effects=torch.randn(2, 4), draws=2, quiet=True)
    found.report(tmp_path)
    text = (tmp_path / "report.md").read_text()
    page = re.sub(r"<script.*?</script>", "", (tmp_path / "report.html").read_text(), flags=re.S)
    drawn = str(found.effects.plot().to_dict())
    for shown in (text, page, drawn, found.effects._repr_html_(), found._repr_html_()):
        assert not re.search(r"\bnan\b", shown, re.IGNORECASE)
    assert "95% low" not in text.partition("## Strongest")[2]
    assert "is not known here" in text
