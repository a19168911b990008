"""Several circuits in one task: planted groups are found, and one circuit is not split."""

import numpy as np
import pytest
import torch

from circuits import several_circuits
from circuits.certainty.mixture import cramers_v, cut_in_two
from mechheads.prompts import Pair, Prompts, Span
from mechheads.scoring.effects import HeadEffects

N, LAYERS, HEADS = 32, 4, 8


def effects_of(values):
    values = torch.tensor(values).float().view(len(values), LAYERS, HEADS)
    ones = torch.ones(len(values))
    return HeadEffects("made", "up", "patch", "logit_diff", values, ones, 0 * ones)


def mixture(rng, group, noise=0.3):
    """Prompts at varying strength; heads 0 to 2 act on the first group, 3 to 5 on the second."""
    acting = np.zeros((max(group) + 1, LAYERS * HEADS))
    for i, row in enumerate(acting):
        row[3 * i : 3 * i + 3] = 1
    strength = rng.uniform(0.5, 1.5, len(group))[:, None]
    return strength * acting[group] + noise * rng.normal(size=(len(group), LAYERS * HEADS))


def one_circuit(rng, noise, strength):
    """Prompts on which the same six heads act, at a strength of their own."""
    acting = np.zeros(LAYERS * HEADS)
    acting[:6] = rng.normal(1, 1, 6)
    own = strength(rng)[:, None]
    chance = 0.3 * noise(rng)
    chance[:, 6:] *= 0.1
    return own * acting + chance, own * (acting + chance)


@pytest.mark.parametrize("second", [16, 10])
def test_two_planted_groups_of_prompts_are_found(second):
    rng = np.random.default_rng(second)
    group = rng.permutation(np.arange(N) < second).astype(int)
    found = several_circuits(effects_of(mixture(rng, group)))
    assert found.groups == 2
    assert None not in (found.p, found.index, found.usual)
    assert float(found.p or 1) <= 0.01
    assert float(found.index or 1) < float(found.usual or 0)
    members = found.members.numpy()
    assert abs(np.corrcoef(members, group)[0, 1]) == pytest.approx(1)
    heads = [{h for _, h in found.strongest(i, 3)} for i in range(2)]
    assert sorted(map(sorted, heads)) == [[0, 1, 2], [3, 4, 5]]
    assert "2 groups" in found.sentence


def test_three_groups_are_three():
    rng = np.random.default_rng(1)
    group = rng.permutation(np.arange(60) % 3)
    found = several_circuits(effects_of(mixture(rng, group, noise=0.1)))
    assert found.groups == 3
    assert cramers_v(found.members.numpy(), group) == pytest.approx(1)


STRENGTHS = {
    "even": lambda rng: rng.uniform(0.2, 2, N),
    "skewed": lambda rng: rng.lognormal(0, 0.8, N),
    "two": lambda rng: np.where(rng.random(N) < 0.5, 0.3, 2.0),  # one circuit all the same
}
NOISES = {
    "normal": lambda rng: rng.normal(size=(N, LAYERS * HEADS)),
    "heavy": lambda rng: rng.laplace(0, 0.7, (N, LAYERS * HEADS)),
}


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("strength", STRENGTHS)
def test_one_circuit_at_varying_strength_is_one(strength, noise):
    wrong = 0
    for seed in range(10):
        rng = np.random.default_rng(seed)
        for values in one_circuit(rng, NOISES[noise], STRENGTHS[strength]):
            wrong += several_circuits(effects_of(values), draws=99).real
    assert wrong <= 3  # of 20, at a level of 0.05: more has a probability of 0.016


def test_heads_that_trade_off_continuously_are_one_circuit():
    rng = np.random.default_rng(0)
    share = rng.uniform(0, 1, N)[:, None]
    both = np.zeros((2, LAYERS * HEADS))
    both[0, 0] = both[1, 1] = 1
    values = share * both[0] + (1 - share) * both[1] + 0.05 * rng.normal(size=(N, LAYERS * HEADS))
    assert not several_circuits(effects_of(values)).real


def test_groups_are_compared_with_what_is_known_of_the_prompts():
    rng = np.random.default_rng(2)
    group = rng.permutation(np.arange(N) % 2)
    names = [("A", "B"), ("B", "A")]
    pairs = tuple(
        Pair(
            f"{'So one' if rng.random() < 0.5 else 'And two'} then {i}", "", (" x",), (),
            spans=(Span(names[side][0], 0, 2), Span(names[side][1], 3, 5)),
        )
        for i, side in enumerate(group)
    )  # fmt: skip
    effects = effects_of(mixture(rng, group))
    found = several_circuits(effects, Prompts("made", "logit_diff", pairs))
    assert {fit.name for fit in found.labels} == {"order of the marked parts", "first word"}
    (fit,) = found.fits
    assert fit.name == "order of the marked parts"
    assert fit.agreement == pytest.approx(1)
    assert "They go with the order of the marked parts" in found.sentence


def test_what_cannot_be_tested_is_said():
    rng = np.random.default_rng(0)
    few = several_circuits(effects_of(rng.normal(size=(8, LAYERS * HEADS))))
    assert few.p is None
    assert few.sentence.endswith("8 prompts are fewer than 16.")
    same = several_circuits(effects_of(np.outer(rng.uniform(1, 2, N), np.ones(LAYERS * HEADS))))
    assert "do not differ" in same.sentence


def test_the_best_cut_of_points_on_a_line_is_the_best_of_all():
    rng = np.random.default_rng(3)
    points = np.sort(rng.normal(size=24))
    index = cut_in_two(points[None, :, None])[1][0]
    cuts = [points[:i].var() * i + points[i:].var() * (24 - i) for i in range(4, 21)]
    assert index == pytest.approx(min(cuts) / (points.var() * 24))


def test_cramers_v_is_that_of_scipy():
    from scipy.stats.contingency import association

    rng = np.random.default_rng(4)
    one, two = rng.integers(0, 2, 40), rng.integers(0, 4, 40)
    table = np.zeros((2, 4), dtype=int)
    np.add.at(table, (one, two), 1)
    assert cramers_v(one, two) == pytest.approx(association(table, "cramer"))
