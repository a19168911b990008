"""Other heads that do the same: those planted are found, and judged on other prompts."""

import pytest
import torch

import tasks
from circuits import Discovery, alternative_circuits, discover
from circuits.certainty.alternatives import _shortest
from mechheads.engine.head_subsets import keep_only, measure_subsets
from mechheads.errors import MechheadsError
from mechheads.models.load import load
from mechheads.scoring.registry import score_heads

INDUCTION, COPIES = (1, 1), {(0, 0), (0, 2)}


@pytest.fixture(scope="module")
def redundant():
    """A model in which either of two copies is enough, and 16 prompts."""
    model = load("known/redundant")
    return model, tasks.make("known/redundant", model, n=16)


@pytest.fixture(scope="module")
def found(redundant):
    return discover(*redundant, draws=2, alternatives=2, quiet=True)


def kinds(found, how):
    return [one for one in found.found if one.how == how]


def test_the_other_copy_is_found_with_and_without_what_nothing_replaces(found):
    assert INDUCTION in found.circuit.heads
    (other,) = COPIES - set(found.circuit.heads)
    others = found.alternatives
    assert others.core == (INDUCTION,)
    for how in ("core", "penalised"):
        first = kinds(others, how)[0]
        assert set(first.heads) == {INDUCTION, other}
        assert first.reached
        assert float(others.explained[3 + others.found.index(first)]) > 0.9
    (none,) = kinds(others, "disjoint")  # nothing replaces the induction head
    assert not none.reached
    assert not set(none.heads) & set(found.circuit.heads)
    assert others.headline["disjoint_explained"] == pytest.approx(0, abs=0.01)
    assert "Nothing replaces L1H1: with it and 1 other head, 99% is explained." in others.sentence


def test_a_second_alternative_avoids_the_first(found):
    second = kinds(found.alternatives, "core")[1]
    assert second.number == 2
    assert not COPIES & set(second.heads)
    assert not second.reached


def test_a_disjoint_circuit_is_found_next_to_a_single_copy(redundant):
    model, prompts = redundant
    ranking, judging = prompts.halves()
    effects = score_heads(model, ranking, "patch", quiet=True)
    others = alternative_circuits(
        model, ranking, effects, judging, circuit="L0H0", threshold=0.9, quiet=True
    )
    disjoint = kinds(others, "disjoint")[0]
    assert disjoint.reached
    assert set(disjoint.heads) == {INDUCTION, (0, 2)}
    assert not kinds(others, "core")
    assert others.core is None
    keep = torch.stack([keep_only(kept, 2, 3) for kept in ([], effects.ranking(), disjoint.heads)])
    none, whole, own = measure_subsets(model, judging, keep, quiet=True).mean(1).tolist()
    assert others.headline["disjoint_explained"] == pytest.approx((own - none) / (whole - none))
    row = others.frame().iloc[1]
    assert (row["how"], row["jaccard"], row["size"]) == ("disjoint", 0, 2)
    assert row["ci_low"] <= row["faithfulness"] <= row["ci_high"]


def test_without_a_penalty_the_same_circuit_is_found_again(redundant):
    model, prompts = redundant
    ranking, judging = prompts.halves()
    effects = score_heads(model, ranking, "patch", quiet=True)
    others = alternative_circuits(model, ranking, effects, judging, penalty=1.0, quiet=True)
    (same,) = kinds(others, "penalised")
    assert set(same.heads) == set(others.circuit)
    assert others.jaccard(same.heads) == 1


def test_the_judging_prompts_choose_no_heads(redundant):
    model, prompts = redundant
    ranking, judging = prompts.halves()
    effects = score_heads(model, ranking, "patch", quiet=True)
    one, two = (
        alternative_circuits(model, ranking, effects, test, n=2, quiet=True)
        for test in (judging, tasks.make("known/induction", model, n=4, split="all"))
    )
    assert one.found == two.found
    assert one.values.shape != two.values.shape


MANY = [divmod(i, 32) for i in range(1024)]


def fewest(f, ranking=MANY, kept=(), threshold=0.9):
    """The size found, and how many sets were measured; f is a function of the heads added."""
    asked = []

    def shares(sets):
        asked.extend(len(one) - len(kept) for one in sets)
        assert all(one == [*kept, *ranking[: len(one) - len(kept)]] for one in sets)
        return torch.tensor([f(len(one) - len(kept)) for one in sets])

    heads, share = _shortest(ranking, kept, shares, threshold)
    k = len(heads) - len(kept)
    assert share == pytest.approx(f(k))
    assert len(set(asked)) == len(asked)  # none twice
    return k, asked


@pytest.mark.parametrize("wanted", [1, 2, 16, 17, 100, 333, 512, 1023, 1024])
def test_of_many_heads_some_sets_are_measured_and_the_fewest_are_exact(wanted):
    found, asked = fewest(lambda k: 0.9 * k / wanted)
    assert found == wanted
    assert len(asked) < 124
    assert fewest(lambda k: 0.9 * k / wanted, kept=[(40, 0), (41, 0)]) == (found, asked)


@pytest.mark.parametrize("peak", [1, 40, 200, 700, 1024])
def test_of_many_heads_that_do_not_reach_it_the_fewest_of_the_best_are_taken(peak):
    found, asked = fewest(lambda k: min(k, peak) / peak * 0.5)
    assert found == next(k for k in range(1, 1025) if min(k, peak) / peak >= 1 - 0.002 - 1e-9)
    assert len(asked) < 124


def test_of_few_heads_every_number_is_measured():
    dip = [0.2, 0.95, 0.1, *[0.3] * 60, 1.0]
    assert fewest(lambda k: dip[k - 1], MANY[:64]) == (2, list(range(1, 65)))
    assert fewest(lambda k: min(0.5, 0.2 * k), MANY[:5]) == (3, [1, 2, 3, 4, 5])


def test_alternatives_are_saved_and_reported(found, tmp_path):
    page = found.report(tmp_path)
    assert "Could other heads do the same?" in page.read_text()
    again = Discovery.load(tmp_path)
    assert again.alternatives is not None
    assert again.alternatives.found == found.alternatives.found
    assert again.headline == found.headline
    assert again.headline["core_jaccard"] == pytest.approx(1 / 3)


def test_settings_out_of_range_are_named(redundant):
    model, prompts = redundant
    ranking, judging = prompts.halves()
    effects = score_heads(model, ranking, "attribution", quiet=True)

    def search(**options):
        return alternative_circuits(model, ranking, effects, judging, quiet=True, **options)

    with pytest.raises(MechheadsError, match="n takes 1 or more"):
        search(n=0)
    with pytest.raises(MechheadsError, match="penalty takes a factor from 0 to 1"):
        search(penalty=2.0)
    with pytest.raises(MechheadsError, match="6 of 6 heads"):
        search(circuit=effects.ranking())
    with pytest.raises(MechheadsError, match="not str"):
        alternative_circuits(model, ranking, "L0H0", judging)
    with pytest.raises(MechheadsError, match="--alternatives takes 0 or more"):
        discover(model, prompts, alternatives=-1)
