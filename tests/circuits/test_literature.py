"""The published circuits hold the facts of ../shared, and are whole without it."""

import json

import pytest

from circuits.literature import GRIDS, PUBLISHED, published, published_for
from mechheads.errors import MechheadsError


def test_the_counts_are_the_papers():
    assert len(published("ioi_gpt2_small")) == 26
    assert len(published("docstring_attn_only_4l")) == 11
    both = {
        *published("greater_than_gpt2_small").heads,
        *published("greater_than_gpt2_small_acdc").heads,
    }
    assert len(both) == 11
    assert all(circuit.source for circuit in PUBLISHED.values())
    assert all(set(circuit.roles) == set(circuit.heads) for circuit in PUBLISHED.values())


@pytest.mark.shared
def test_heads_are_those_of_the_shared_facts(shared):
    facts = json.loads((shared / "published_circuits.json").read_text())
    ioi = facts["ioi_gpt2_small"]
    for role in (r for r in ioi["position"]):
        wanted = {tuple(head) for head in ioi[role]}
        ours = published("ioi_gpt2_small")
        assert {h for h, name in ours.roles.items() if name == role.replace("_", " ")} == wanted
    greater = facts["greater_than_gpt2_small"]
    assert set(published("greater_than_gpt2_small").heads) == {
        tuple(head) for head in greater["hanna_code_heads_at_END"]
    }
    acdc = greater["acdc_autocircuit"]
    assert set(published("greater_than_gpt2_small_acdc").heads) == {
        tuple(head) for head in acdc["early_heads"] + acdc["mid_heads"]
    }
    docstring = facts["docstring_attn_only_4l"]
    assert set(published("docstring_attn_only_4l").heads) == {
        tuple(head)
        for part in ("core", "less_important", "extras_for_performance")
        for head in docstring[part]
    }


def test_another_model_of_the_same_name_has_no_published_circuit():
    assert [c.name for c in published_for("ioi", "gpt2", (12, 12))] == ["ioi_gpt2_small"]
    assert published_for("ioi", "gpt2", (2, 4)) == []
    assert published_for("ioi", "mini", (12, 12)) == []
    for circuit in PUBLISHED.values():
        layers, heads = GRIDS[circuit.model]
        assert all(layer < layers and head < heads for layer, head in circuit.heads)


def test_an_unknown_circuit_is_named():
    with pytest.raises(MechheadsError, match="ioi_gpt2_small"):
        published("ioi_gpt2")
