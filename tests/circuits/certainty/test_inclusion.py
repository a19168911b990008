"""How often a head is in the circuit: against drawing prompts in a loop, and by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from pairs import random_pairs

from circuits import Curve, Discovery, discover, inclusion
from circuits.certainty.inclusion import resampled_ranks
from circuits.report import effects_table
from mechheads.errors import MechheadsError
from mechheads.scoring.effects import HeadEffects

N, HEADS = 12, 6


def made(noise, seed=0):
    """Effects of 2 x 3 heads that fall from head to head, and the curve of their ranking."""
    rng = np.random.default_rng(seed)
    falling = np.linspace(3, 0.5, HEADS)
    values = torch.tensor(falling + noise * rng.normal(size=(N, HEADS))).float().view(N, 2, 3)
    ones = torch.ones(N)
    effects = HeadEffects("made", "up", "patch", "logit_diff", values, ones, 0 * ones)
    steps = np.linspace(0, 1, HEADS + 1)[:, None] + 0.4 * noise * rng.normal(size=(HEADS + 1, N))
    steps[0], steps[-1] = 0, 1
    ranking = tuple(effects.ranking())
    random = torch.linspace(0, 1, HEADS + 1)[None]
    at = tuple(range(HEADS + 1))
    settings = {"replacement": "corrupt"}
    given = torch.tensor(steps).float(), random, at, settings
    return effects, Curve("made", "up", "logit_diff", ranking, at, *given)


def in_a_loop(effects, curve, threshold, times=4000):
    """Both sets of prompts drawn again, together, one sample after the other."""
    rng = np.random.default_rng(5)
    often = np.zeros(HEADS)
    values, judged = effects.values.flatten(1).numpy(), curve.values.numpy()
    for _ in range(times):
        means = abs(values[rng.integers(0, N, N)].mean(0))
        share = judged[:, rng.integers(0, N, N)].mean(1)
        share = (share - share[0]) / (share[-1] - share[0])
        kept = next(k for k in range(HEADS + 1) if share[k] >= threshold)
        often[np.argsort(-means, kind="stable")[: max(1, kept)]] += 1
    return often / times


@pytest.mark.parametrize("threshold", [0.5, 0.8])
def test_inclusion_is_what_drawing_both_sets_of_prompts_gives(threshold):
    effects, curve = made(noise=1.5)
    found = inclusion(effects, curve, threshold).frequency.flatten().numpy()
    assert ((found > 0.01) & (found < 0.99)).sum() >= 3
    assert found == pytest.approx(in_a_loop(effects, curve, threshold), abs=0.03)


def test_without_noise_a_head_is_in_or_out():
    effects, curve = made(noise=0)
    found = inclusion(effects, curve, 0.5)
    assert found.frequency.flatten().tolist() == [1, 1, 1, 0, 0, 0]
    assert found.members == ((0, 0), (0, 1), (0, 2))
    assert found.by_threshold.flatten(1).sum(1).tolist() == [5, 6, 6, 6]
    assert found.sizes[:, 0].tolist() == [5, 6, 6, 6]
    assert "3 of the 3 heads that explain 50% stay in at least 95%" in found.sentence
    assert found.headline == {"heads_sure": 3, "heads_possible": 3}


def test_at_a_fixed_size_as_many_heads_are_in_on_every_sample():
    effects, curve = made(noise=1.5)
    found = inclusion(effects, curve, size=2)
    assert float(found.frequency.sum()) == pytest.approx(2, abs=1e-4)
    ranks = resampled_ranks(effects)
    torch.testing.assert_close(found.frequency.flatten(), ranks[:, :2].sum(1))
    assert found.frame().sort_values("rank")["rank"].tolist() == [1, 2, 3, 4, 5, 6]
    assert "that are the strongest" in found.sentence


def test_of_a_single_score_per_head_only_the_size_varies():
    effects, curve = made(noise=1.5)
    single = replace(
        effects, values=effects.scores[None], clean=torch.ones(1), corrupt=torch.zeros(1)
    )
    found = inclusion(single, curve, 0.8)
    falling = [float(found.frequency[head]) for head in found.ranking]
    assert falling == sorted(falling, reverse=True)
    assert not found.reranked
    assert "judging prompts" in found.sentence


def test_a_curve_of_another_ranking_is_refused():
    effects, curve = made(noise=0)
    with pytest.raises(MechheadsError, match="another ranking"):
        inclusion(effects, replace(curve, ranking=curve.ranking[::-1]))


def test_discover_writes_the_inclusion_of_every_head(planted, tmp_path):
    found = discover(planted, random_pairs(planted, 2, (8,) * 16), draws=2)
    table = effects_table(found)
    shares = dict(
        zip(zip(table["layer"], table["head"], strict=True), table["inclusion"], strict=True)
    )
    assert len(shares) == 8
    assert shares[found.circuit.heads[0]] == max(shares.values()) > 0.5
    idle = [head for head in found.curve.ranking if head not in {(0, 1), (1, 2)}]
    assert all(shares[head] == 0 for head in idle)
    page = found.report(tmp_path)
    assert "How sure is each head" in page.read_text()
    assert 1 <= found.headline["heads_possible"] <= 2
    again = Discovery.load(tmp_path)
    assert again.inclusion is not None
    assert found.inclusion is not None
    assert again.inclusion.frame().equals(found.inclusion.frame())
