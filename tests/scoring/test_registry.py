"""Methods by name, with options after a colon."""

import pytest
from pairs import random_pairs

from mechheads.errors import MechheadsError
from mechheads.scoring.registry import METHODS, find, register_method, score_heads


def test_an_option_after_the_name_is_the_option_given_apart(tiny):
    prompts = random_pairs(tiny, 2)
    found = score_heads(tiny, prompts, "ig:steps=2", quiet=True)
    apart = score_heads(tiny, prompts, "ig", steps=2, quiet=True)
    default = score_heads(tiny, prompts, "ig", quiet=True)
    assert found.values.equal(apart.values)
    assert not found.values.equal(default.values)
    assert found.settings == apart.settings != default.settings


def test_several_options_are_joined_by_plus_signs_and_have_their_types():
    method = find("hybrid:verify=8+subsets=2")
    assert method.name == "hybrid:verify=8+subsets=2"
    assert method.given["verify"] in (8, "8")  # as the method wants it
    assert method.given["subsets"] == 2
    assert set(METHODS["hybrid"].flags) - set(method.flags) == {"verify", "subsets"}
    assert not {"verify", "subsets"} & set(method.options)


def test_they_count_in_the_work():
    assert find("ig:steps=10").passes(8, 1, {}) == 2 * find("ig").passes(8, 1, {})
    assert find("ig:steps=10").passes(8, 1, {"quiet": True}) == find("ig").passes(
        8, 1, {"steps": 10}
    )


def test_your_own_method_has_them_too(tiny, monkeypatch):
    monkeypatch.setattr(METHODS, "_items", dict(METHODS))
    seen = []

    @register_method("mine")
    def mine(model, prompts, metric, *, times: float = 1.0, quiet: bool = False):
        seen.append(times)
        return score_heads(model, prompts, "direct", quiet=True)

    score_heads(tiny, random_pairs(tiny, 2), "mine:times=2.5", quiet=True)
    assert seen == [2.5]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ig:step=10", "unknown flag --step: method ig has no such option .its options: --steps"),
        ("ig:10", "The method ig: takes options like .*, got '10'"),
        ("ig:steps=", "takes options like"),
        ("ig:steps=2+", "takes options like"),
        ("ig:", "takes options like"),
        ("direct:steps=2", "The method direct takes nothing after a colon"),
        ("igg:steps=2", "Did you mean 'ig'"),
    ],
)
def test_what_cannot_be_an_option_is_named(name, words):
    with pytest.raises(MechheadsError, match=words):
        find(name)


def test_a_value_of_the_wrong_type_and_an_option_given_twice_are_named(tiny):
    with pytest.raises(MechheadsError, match="ig:steps=many: steps takes a whole number"):
        score_heads(tiny, random_pairs(tiny, 2), "ig:steps=many")
    with pytest.raises(MechheadsError, match="ig:steps=2 has no option steps"):
        score_heads(tiny, random_pairs(tiny, 2), "ig:steps=2", steps=3)
