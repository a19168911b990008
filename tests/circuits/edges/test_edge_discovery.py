"""From prompts to a circuit of edges, and from two circuits to a comparison."""

from dataclasses import replace

import pytest
import torch
from pairs import random_pairs

from circuits import Discovery, compare_edges, discover_edges
from circuits.comparison import in_pairs
from circuits.edges.comparison import EdgeComparison
from circuits.edges.discovery import EdgeDiscovery
from mechheads.errors import MechheadsError


@pytest.fixture(scope="module")
def found(planted) -> EdgeDiscovery:
    return discover_edges(planted, random_pairs(planted, 2, (8,) * 16), draws=2, points=9)


def test_only_edges_of_the_planted_heads_are_needed(found):
    # Nothing but L0H1 and L1H2 writes anything.
    assert set(found.heads) <= {(0, 1), (1, 2)}
    assert found.needed < found.curve.random_needed(0.9)
    effects = found.effects.by_receiver(found.curve.graph)
    senders = effects.abs().sum(1).nonzero().flatten().tolist()
    assert senders == [1, 4 + 2]
    assert f"{found.needed} of 68 edges" in found.sentence


def test_the_circuit_is_listed_strongest_first(found):
    frame = found.strongest()
    assert len(frame) == found.needed
    assert frame.effect.abs().is_monotonic_decreasing
    first = frame.iloc[0]
    effects = found.effects.by_receiver(found.curve.graph)
    assert first.effect == pytest.approx(float(effects.flatten()[effects.abs().argmax()]))
    assert set(frame.edge.str.partition(" → ")[0]) <= {"L0H1", "L1H2"}


def test_prompts_that_rank_do_not_judge(planted):
    prompts = random_pairs(planted, 2, (8,) * 16)
    ranked, judged = prompts.halves()
    one = discover_edges(planted, prompts, draws=2, points=3)
    two = discover_edges(planted, ranked, judged, draws=2, points=3)
    assert torch.equal(one.curve.values, two.curve.values)
    assert one.judged_on == judged.digest()
    assert one.ranked_on == 8


def test_a_discovery_comes_back_as_it_was(found, tmp_path):
    again = EdgeDiscovery.load(found.save(tmp_path))
    assert again.sentence == found.sentence
    assert again.headline == found.headline
    assert again.frame().equals(found.frame())
    assert again.strongest(9).equals(found.strongest(9))


def test_parts_that_do_not_belong_together_are_refused(found, tmp_path):
    values = {part: x[:1, :, :1] for part, x in found.effects.values.items()}
    effects = replace(found.effects, values=values, errors=values, logits=None, mlps=None)
    replace(found, effects=effects).save(tmp_path)
    with pytest.raises(MechheadsError, match="does not hold a readable EdgeDiscovery"):
        EdgeDiscovery.load(tmp_path)


def test_settings_out_of_range_are_named(tiny):
    prompts = random_pairs(tiny, 2, (8,) * 16)
    with pytest.raises(MechheadsError, match="6 prompts are too few"):
        discover_edges(tiny, prompts.first(6))
    with pytest.raises(MechheadsError, match="--steps takes 1 or more"):
        discover_edges(tiny, prompts, steps=0)
    with pytest.raises(MechheadsError, match="position_mean"):
        discover_edges(tiny, prompts, replacement="positionmean")
    with pytest.raises(MechheadsError, match="step function"):
        discover_edges(tiny, prompts, metric="accuracy")


def test_a_model_with_itself_has_a_multiplier_of_one(found):
    same = compare_edges([found, found], [found, found])
    assert [(t.edges.multiplier, t.edges.low, t.edges.high) for t in same.tasks] == [(1, 1, 1)] * 2
    assert same.labels == ("A", "B")
    assert same.differences == ()
    assert "the same number on random names" in same.sentence


def test_the_multiplier_is_the_ratio_of_edges_needed(found, tmp_path):
    fewer = replace(found.curve, values=found.curve.values.clone(), model="other")
    fewer.values[1:] = fewer.values[-1]
    other = replace(found, curve=fewer, sparse=True)
    comparison = compare_edges(found, other)
    (task,) = comparison.tasks
    assert fewer.needed(0.9) == 1
    assert task.edges.multiplier == found.needed
    assert comparison.labels == ("standard", "sparse")
    assert "needs fewer circuit edges" in comparison.sentence
    again = EdgeComparison.load(comparison.save(tmp_path))
    assert again.frame().equals(comparison.frame())
    assert again.sentence == comparison.sentence


def test_other_differences_are_warnings(found):
    signed = replace(found.curve, settings={**found.curve.settings, "signed": True})
    one = compare_edges(found, replace(found, curve=signed, ranked_on=9, judged_on="x"))
    said = " ".join(one.warnings)
    for words in ("ranked differently", "ranked on 8 prompts", "judged on different prompts"):
        assert words in said


def test_heads_and_edges_are_not_compared(found):
    with pytest.raises(MechheadsError, match="compare takes what"):
        in_pairs(found, found, Discovery)  # type: ignore[arg-type]
    curve = replace(found.curve, metric="logprob")
    with pytest.raises(MechheadsError, match="same --metric"):
        compare_edges(found, replace(found, curve=curve))
