"""Operations are those counted by hand, and estimates grow with heads, prompts and tokens."""

import pytest
import torch
from pairs import random_pairs

from mechheads.engine.costs import (
    Load,
    Sizes,
    cached,
    changed,
    curve,
    loads_of,
    measure_speed,
    needed,
    patching,
    sizes_of,
    whole,
)

# Two layers of two heads; an MLP of 8; per token: q and out 2 * 32, k and v 2 * 16, MLP 2 * 64.
SIZES = Sizes(2, 2, 1, d_model=4, d_head=2, d_mlp=8, gated=False, vocab=10)


def test_a_run_changed_in_the_first_layer_is_counted_by_hand():
    load = Load(rows=3, length=5, first=2)
    first_layer = 3 * (2 * 4 * 2 + 128)  # what the head writes, and the MLP, at three positions
    keys = 3 * 32
    end = 64 + 128 + 4 * 1 * 5 * 2 * 2  # queries, output and MLP at the end; scores and sums
    logits = 2 * 4 * 2
    assert changed(SIZES, load, 0) == 3 * (first_layer + keys + end + logits)
    assert changed(SIZES, load, 1) == 3 * (16 + 128 + logits)
    assert needed(SIZES, 3, 5, 2) == 2 * (changed(SIZES, load, 0) + changed(SIZES, load, 1))


def test_patching_is_two_cached_runs_and_what_is_needed():
    load = Load(rows=3, length=5, first=2)
    block = 5 * (64 + 32 + 128) + 4 * 5 * 5 * 2 * 2
    assert cached(SIZES, [load]) == 2 * 3 * 2 * block
    assert whole(SIZES, [load]) == 3 * (2 * block + 5 * 2 * 4 * 10)
    assert patching(SIZES, [load]) == cached(SIZES, [load]) + needed(SIZES, 3, 5, 2)
    assert patching(SIZES, [load], 0) == cached(SIZES, [load])


def test_more_heads_prompts_and_tokens_take_longer():
    load = Load(4, 8, 3)
    heads = [patching(SIZES, [load], n) for n in range(5)]
    assert heads == sorted(set(heads))
    prompts = [patching(SIZES, [load] * n) for n in range(1, 4)]
    assert prompts == sorted(set(prompts))
    lengths = [patching(SIZES, [Load(4, n, 3)]) for n in range(4, 9)]
    assert lengths == sorted(set(lengths))
    first = [patching(SIZES, [Load(4, 8, n)]) for n in range(8)]
    assert first == sorted(set(first), reverse=True)


def test_nested_subsets_share_their_first_layers():
    load, every = Load(4, 8, 1), range(SIZES.layers * SIZES.heads + 1)
    apart = len(every) * changed(SIZES, load, 0)
    whole_curve = curve(SIZES, [load], every)
    assert curve(SIZES, [load], [0]) == pytest.approx(changed(SIZES, load, 0))
    # Four heads further on, all but one subset in 2**4 differ in the first of two layers.
    early, late = changed(SIZES, load, 0), changed(SIZES, load, 1)
    assert curve(SIZES, [load], [0, 4]) == pytest.approx((1 + 15 / 16) * (early - late) + 2 * late)
    assert curve(SIZES, [load], [0, 2, 4]) < whole_curve < apart


def test_shared_positions_count_only_where_both_prompts_are_run(tiny):
    prompts = random_pairs(tiny, 5, (9, 9))
    (load,) = loads_of(tiny, prompts)
    assert (load.rows, load.length, load.first, load.steps) == (2, 9, 5, 1)
    assert loads_of(tiny, prompts, replacement="zero")[0].first == 0
    assert load.answers == 2
    assert loads_of(tiny, prompts, "prob_diff")[0].answers == sizes_of(tiny).vocab


def test_the_speed_is_operations_by_the_seconds_of_the_second_run(tiny):
    prompts, ticks = random_pairs(tiny, 3), iter([0.0, 100.0, 100.0, 102.0])
    speed = measure_speed(tiny, prompts, clock=lambda: next(ticks))
    load = Load(3, 9, 3)
    assert speed == tiny.cfg.n_heads * changed(sizes_of(tiny), load, 0) / 2
    assert not torch.is_inference_mode_enabled()
