"""The bound on what was missed: Welch's interval, and wide enough on a model that adds up."""

import numpy as np
import pytest
import torch
from scipy import stats

from mechheads.benchmarks.timings import random_prompts, tokenizer_of_words
from mechheads.models.model import shape_of
from mechheads.models.untrained import random_model
from mechheads.scoring.activation_patching import patch
from mechheads.scoring.backward.missed_heads import missed_heads, upper_ends


def test_a_bound_is_the_far_end_of_a_welch_interval():
    rng = np.random.default_rng(0)
    values, inside = torch.tensor(rng.normal(size=20)), torch.tensor(rng.random((20, 3)) < 0.5)
    for column, end in zip(inside.T, upper_ends(values.float(), inside), strict=True):
        groups = values.float()[column].numpy(), values.float()[~column].numpy()
        found = stats.ttest_ind(*groups, equal_var=False)
        low, high = found.confidence_interval(1 - 0.05 / 3)
        assert float(end) == pytest.approx(max(abs(low), abs(high)), rel=1e-4)


@pytest.mark.hooked
def test_the_largest_effect_is_below_the_bound_where_heads_add_up():
    model = random_model(
        tokenizer_of_words(50),
        n_layers=1,
        n_heads=8,
        d_model=16,
        d_head=2,
        d_vocab=50,
        n_ctx=16,
        attn_only=True,
        normalization_type=None,
    )
    prompts = random_prompts(5, 8, 3, 50)
    heads = shape_of(model).every_head
    exact = patch(model, prompts, quiet=True).scores.abs().max()
    few, many = (
        missed_heads(model, prompts, None, heads, n, quiet=True)["largest_missed"]
        for n in (16, 128)
    )
    assert float(exact) < many < few
    assert missed_heads(model, prompts, None, heads[:1], 16) == {
        "subsets": 0,
        "largest_missed": None,
    }
