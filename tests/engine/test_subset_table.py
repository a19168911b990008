"""Subsets measured by several processes, and once each."""

import pytest
import torch
from pairs import random_pairs

from circuits.curve import explained_effect_curve
from mechheads.engine import subset_table
from mechheads.engine.head_subsets import measure_subsets, nested
from mechheads.engine.subset_table import Enough, SubsetShare, SubsetTable, joined

ORDER = [(1, 2), (0, 0), (0, 3), (1, 1), (1, 0), (0, 1), (1, 3), (0, 2)]


def shares_of(model, prompts, keep, count, **options) -> SubsetTable:
    found = []
    for i in range(count):
        with pytest.raises(Enough) as stopped:
            SubsetShare(i, count)(model, prompts, keep, **options)
        found.append(stopped.value.table)
    return joined(found)


@pytest.mark.parametrize("count", [1, 2, 3, 20])
@pytest.mark.parametrize("replacement", ["corrupt", "mean"])
def test_shares_add_up_to_the_whole_to_the_bit(count, replacement, tiny, monkeypatch):
    prompts = random_pairs(tiny, 2, (8, 8, 10, 12, 12))
    keep = torch.cat([nested(ORDER, 2, 4), torch.rand(5, 2, 4)])
    given = {"replacement": replacement, "budget": 200}  # several batches of several passes
    whole = measure_subsets(tiny, prompts, keep, **given)
    table = shares_of(tiny, prompts, keep, count, **given)
    monkeypatch.setattr(subset_table, "measure_subsets", None)  # nothing is measured again
    assert torch.equal(table(tiny, prompts, keep, **given), whole)


def test_a_share_is_a_part_of_the_passes(tiny):
    prompts = random_pairs(tiny, 2, (8, 8, 10, 12, 12))
    parts = [
        measure_subsets(tiny, prompts, nested(ORDER, 2, 4), budget=200, share=(i, 3))
        for i in range(3)
    ]
    measured = torch.stack(parts) != 0
    assert (measured.sum(0) == 1).all()  # each value by one process
    assert (measured.flatten(1).sum(1) > 0).all()  # and each process some


def test_a_table_measures_each_subset_of_the_same_prompts_once(tiny, monkeypatch):
    asked = []

    def spy(model, prompts, keep, *args, **options):
        asked.append(len(keep))
        return measure_subsets(model, prompts, keep, *args, **options)

    monkeypatch.setattr(subset_table, "measure_subsets", spy)
    table, masks = SubsetTable(), nested(ORDER, 2, 4)
    prompts, others = random_pairs(tiny, 2), random_pairs(tiny, 3)
    table(tiny, prompts, masks[:5])
    found = table(tiny, prompts, masks[3:])
    table(tiny, prompts, masks)
    assert asked == [5, 4]
    torch.testing.assert_close(found, measure_subsets(tiny, prompts, masks[3:]))
    table(tiny, others, masks[:2])
    assert asked == [5, 4, 2]


def test_a_curve_of_shares_is_the_curve_to_the_bit(tiny):
    prompts = random_pairs(tiny, 2, (8, 8, 10))
    shares = []
    for i in range(2):
        with pytest.raises(Enough) as stopped:
            explained_effect_curve(tiny, prompts, ORDER, draws=2, measure=SubsetShare(i, 2))
        shares.append(stopped.value.table)
    given = explained_effect_curve(tiny, prompts, ORDER, draws=2, measure=joined(shares))
    alone = explained_effect_curve(tiny, prompts, ORDER, draws=2)
    assert torch.equal(given.values, alone.values)
    assert torch.equal(given.random_explained, alone.random_explained)
