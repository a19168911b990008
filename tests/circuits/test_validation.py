"""What a circuit explains, leaves, and owes to each head: known for a planted model."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from pairs import random_pairs
from scipy import stats

import tasks
from circuits.certainty.stability import overlap, resampled_overlap
from circuits.circuit import Circuit
from circuits.search import SEARCHES, search_heads
from circuits.validation import faithfulness
from mechheads.engine.head_subsets import keep_only, measure_subsets
from mechheads.errors import MechheadsError
from mechheads.models.load import load
from mechheads.scoring.activation_patching import patch

EVERY = [divmod(i, 4) for i in range(8)]


def prompts_for(model, n=12):
    return random_pairs(model, 2, (8,) * n)


def test_the_planted_heads_explain_everything_and_leave_nothing(planted):
    found = faithfulness(planted, prompts_for(planted), Circuit("c", ((0, 1), (1, 2))))
    assert found.faithfulness == pytest.approx(1, abs=1e-4)
    assert found.left == pytest.approx(0, abs=1e-4)


def test_a_head_that_writes_nothing_contributes_nothing(planted):
    found = faithfulness(planted, prompts_for(planted), Circuit("c", ((0, 1), (0, 3), (1, 2))))
    assert found.contribution[1] == pytest.approx(0, abs=1e-5)
    assert (0, 3) in found.idle
    assert found.contribution.abs().max() > 0.05


def test_numbers_are_ratios_of_means_of_single_masks(tiny):
    prompts, heads = prompts_for(tiny), ((0, 1), (1, 2), (1, 3))
    found = faithfulness(tiny, prompts, Circuit("c", heads))

    def mean(kept):
        return float(measure_subsets(tiny, prompts, keep_only(kept, 2, 4)[None]).mean())

    none, whole = mean([]), mean(EVERY)
    assert found.faithfulness == pytest.approx((mean(heads) - none) / (whole - none), rel=1e-3)
    rest = [head for head in EVERY if head not in heads]
    assert found.left == pytest.approx((mean(rest) - none) / (whole - none), rel=1e-3)
    without = [head for head in heads if head != (1, 2)]
    share = (mean(heads) - mean(without)) / (whole - none)
    assert float(found.contribution[1]) == pytest.approx(share, rel=1e-3, abs=1e-5)
    low, high = found.interval()
    assert (low <= found.contribution + 1e-5).all()
    assert (found.contribution <= high + 1e-5).all()


@pytest.mark.parametrize("how", SEARCHES)
def test_every_search_finds_the_planted_heads(how, planted):
    prompts = prompts_for(planted)
    ranking = patch(planted, prompts).ranking()
    found = search_heads(planted, prompts, ranking, how, threshold=0.999)
    assert found
    assert set(found) <= {(0, 1), (1, 2)}


@pytest.mark.parametrize("how", SEARCHES)
def test_every_search_reaches_its_threshold(how, tiny):
    prompts = prompts_for(tiny)
    ranking = patch(tiny, prompts).ranking()
    heads = search_heads(tiny, prompts, ranking, how, threshold=0.8)
    assert faithfulness(tiny, prompts, Circuit("c", tuple(heads))).faithfulness >= 0.8 - 1e-4
    assert len(heads) <= len(search_heads(tiny, prompts, ranking, "top", threshold=0.8))


def test_pruning_takes_out_a_head_that_the_ranking_puts_too_high(planted):
    prompts = prompts_for(planted)
    ranking = [(0, 3), (0, 1), (1, 2), *(h for h in EVERY if h not in ((0, 3), (0, 1), (1, 2)))]
    assert (0, 3) in search_heads(planted, prompts, ranking, "top", threshold=0.99)
    assert (0, 3) not in search_heads(planted, prompts, ranking, "prune", threshold=0.99)


def test_an_unknown_search_or_threshold_is_named(tiny):
    prompts = prompts_for(tiny)
    with pytest.raises(MechheadsError, match="prune"):
        search_heads(tiny, prompts, EVERY, "prun")
    with pytest.raises(MechheadsError, match=r"above 0 and up to 1, got 1\.5"):
        search_heads(tiny, prompts, EVERY, threshold=1.5)


def test_overlap_is_the_mean_jaccard_index_of_all_pairs():
    one, two = [(0, 0), (0, 1), (0, 2)], [(0, 1), (0, 0), (0, 3)]
    assert overlap([one, two], 2) == 1
    assert overlap([one, two], 1) == 0
    assert overlap([one, two, one], 3) == pytest.approx((0.5 + 1 + 0.5) / 3)
    assert overlap([one], 2) == 1


def test_strong_heads_stay_when_prompts_are_drawn_again(planted):
    effects = patch(planted, prompts_for(planted))
    assert resampled_overlap(effects, 2) == 1
    noise = torch.randn(12, 2, 4, generator=torch.Generator().manual_seed(0))
    unsure = resampled_overlap(replace(effects, values=noise), 2)
    assert unsure < 0.9


def test_the_intervals_are_those_of_the_jackknife():
    mini = load("mini")
    heads = "L3H4,L3H6,L3H3,L3H1,L2H7,L2H0,L2H2"  # most of the effect: it varies with the whole
    found = faithfulness(mini, tasks.make("ioi", mini, n=16), heads, quiet=True)
    rng, values, numbers = np.random.default_rng(7), found.values.double().numpy(), found.headline

    def share(kept, row):
        means = kept.mean(1)
        return (means[row] - means[0]) / (means[1] - means[0])

    rows = rng.integers(0, 16, (20000, 16))
    for row, name in ((2, "faithfulness"), (3, "left")):
        whole = share(values, row)
        without = np.array([share(np.delete(values, i, 1), row) for i in range(16)])
        by_prompt = 16 * whole - 15 * without
        drawn = by_prompt[rows]
        t = (drawn.mean(1) - by_prompt.mean()) / stats.sem(drawn, axis=1)
        half = max(np.quantile(abs(t), 0.95), stats.t.ppf(0.975, 15)) * stats.sem(by_prompt)
        low, high = numbers[f"{name}_low"], numbers[f"{name}_high"]
        assert (low + high) / 2 == pytest.approx(whole, abs=1e-5)
        assert (high - low) / 2 == pytest.approx(half, rel=0.1)
