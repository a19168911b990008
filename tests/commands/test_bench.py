"""The benchmark: both sides find the same effects, and operations are counted by hand."""

import subprocess
import sys

import pytest

from mechheads.benchmarks import timings
from mechheads.benchmarks.estimates import compare_estimates
from mechheads.benchmarks.startup import measure_startup
from mechheads.engine import costs
from mechheads.models.load import find_backend
from mechheads.models.model import encoder_of
from mechheads.models.untrained import random_model
from mechheads.prompts.batches import batches

BACKENDS = ["hooked", "bridge"] if find_backend(None) == "hooked" else ["bridge"]
SMALL = {
    "n_layers": 3,
    "n_heads": 2,
    "d_model": 16,
    "d_head": 8,
    "d_mlp": 32,
    "d_vocab": 60,
    "n_ctx": 32,
    "act_fn": "gelu_new",
    "normalization_type": "LN",
}


@pytest.mark.parametrize("backend", BACKENDS)
def test_both_sides_of_a_comparison_find_the_same_effects(backend, monkeypatch):
    monkeypatch.setitem(timings.SHAPES, "small", SMALL)
    monkeypatch.setattr(timings, "GATED", ("small",))
    found = list(
        timings.compare("small", 1, (5, 1), rows=3, length=8, loops=3, backend=backend, quiet=True)
    )
    assert [t.what.split(",")[0] for t in found] == [
        "patch",
        "patch",
        "curve of 7 points",
        "attribution",
        "answers of 16 tokens",
        "gating",
    ]
    for timing in [*found[:3], *found[4:]]:
        assert timing.difference < 1e-4
    for timing in found[:2]:
        assert timing.floor < timing.ours


def test_prompts_differ_from_the_asked_position_on():
    model = random_model(timings.tokenizer_of_words(60), **SMALL)
    (batch,) = batches(encoder_of(model), timings.random_prompts(4, 8, 5, 60))
    assert batch.length == 8
    assert batch.first == 5


def test_operations_of_the_loop_are_those_of_all_products():
    sizes = costs.Sizes(
        layers=2, heads=2, kv_heads=1, d_model=4, d_head=2, d_mlp=8, gated=False, vocab=10
    )
    token = 2 * (4 * 4 + 4 * 2 + 4 * 2 + 4 * 4) + 2 * (4 * 8 + 8 * 4)  # q, k, v, out, MLP
    scores = 2 * (5 * 5 * 2 * 2) + 2 * (5 * 5 * 2 * 2)  # scores, and sums of values
    whole = 2 * (5 * token + scores) + 2 * 5 * 4 * 10
    assert costs.loop(sizes, 3, 5) == 2 * 2 * 3 * whole


def test_less_is_needed_the_later_the_prompts_differ_and_never_more_than_the_loop_does():
    sizes = costs.Sizes(12, 12, 12, 768, 64, 3072, False, 50257)
    needed = [costs.needed(sizes, 16, 16, first) for first in range(1, 16)]
    assert needed == sorted(needed, reverse=True)
    assert needed[0] < costs.loop(sizes, 16, 16)
    # peers.md counts 3.26 times less without sharing, 8.7 with ten of sixteen positions shared.
    assert costs.loop(sizes, 16, 16) / costs.needed(sizes, 16, 16, 0) == pytest.approx(3.26, 0.05)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--first", "16"], "--first takes 1 to 15 with prompts of 16 tokens, got 16"),
        (["sweep", "--cells", "0"], "--cells takes 1 or more, got 0"),
        (["spede"], "Did you mean 'speed'"),
        (["peers", "--shape", "smollm2"], "gpt2"),
        (["peers", "--with", "nothing/python"], "'nothing/python' cannot be used"),
        (["--record", "runs"], "--record is for bench peers and size, not for bench speed"),
        (["--shape", "gpt3"], "gpt2"),
        (["--threads", "two"], "--threads takes a whole number, got 'two'"),
        (["--shape", ","], "--shape takes a list"),
        (["--threads", "0"], "--threads takes 1 or more, got 0"),
    ],
)
def test_wrong_flags_are_one_line(flags, message):
    done = subprocess.run(
        [sys.executable, "-m", "mechheads.bench", *flags], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_start_is_told_stage_by_stage():
    found = measure_startup(rounds=1)
    assert list(found.stages)[:2] == ["Python", "torch"]
    assert list(found.stages)[-2:] == ["mini, read and checked", "exit"]
    assert found.stages["torch"] > 0.05
    assert found.loaded == pytest.approx(sum(list(found.stages.values())[:-1]))
    assert found.sentence in found.table


def test_an_estimate_is_near_the_cpu_time_taken():
    found = compare_estimates((("mini", "attribution", 8),), quiet=True)
    (one,) = found.estimates
    assert 0.1 < one.ratio < 10  # on a busy machine too
    assert one.timing < one.actual
    assert found.sentence in found.table
