"""Average attention that tokens get, and which head it moves in most."""

import math
from typing import Any

import pytest
import torch

from mechheads.errors import MechheadsError
from mechheads.filler.accuracy import ask
from mechheads.filler.average_attention import (
    Attention,
    aligned,
    all_weights,
    column_means,
    measure_attention,
    sinks_of,
    total_change,
)
from mechheads.filler.insertion import make
from mechheads.filler.mechanism import late_weights


def test_length_0_is_none(mini, questions):
    empty, none = (make(mini, questions, c, length=0) for c in ("mless", "none"))
    assert empty == none
    prompts = {"none": none, "mless": empty}
    some = {name: made[:4] for name, made in prompts.items()}
    said = ask(mini, questions[:4], some, max_tokens=2, stop=("\n",), quiet=True)
    assert said.said["none"] == said.said["mless"]
    assert torch.equal(said.right["none"], said.right["mless"])
    found = measure_attention(mini, prompts, (0, 1))
    assert torch.equal(found.original["none"][:, :-1], found.original["mless"][:, :-1])
    assert found.change.abs().max() == 0
    assert set(found.frame()["panel"]) == {"original"}


def test_column_means_are_those_of_a_double_loop():
    pattern = torch.rand(2, 3, 6, 6).tril()
    found = column_means(pattern)
    for place in ((0, 0), (1, 2)):
        for key in range(5):
            total = [pattern[(*place, query, key)].item() for query in range(key + 1, 6)]
            assert found[(*place, key)].item() == pytest.approx(sum(total) / len(total))
        assert math.isnan(found[(*place, 5)].item())


def test_weights_are_those_of_the_patterns(mini, questions):
    made = make(mini, questions[:1], "mless", length=9)
    (prompt,) = made
    original, full = all_weights(mini, made)
    tokens = torch.tensor([prompt.ids])
    _, cache = mini.run_with_cache(tokens)
    pattern, n = cache["blocks.2.attn.hook_pattern"][0, 5], tokens.shape[1]
    for key in range(n - 1):
        mean = sum(pattern[query, key].item() for query in range(key + 1, n)) / (n - 1 - key)
        assert full[0, 2, 5, key].item() == pytest.approx(mean, abs=1e-6)
    # Of the original tokens: neither the run's keys nor its queries.
    kept = [i for i in range(n) if i < prompt.cut or i >= prompt.cut + prompt.run]
    for place, key in enumerate(kept[:-1]):
        later = [pattern[query, key].item() for query in kept if query > key]
        assert original[0, 2, 5, place].item() == pytest.approx(sum(later) / len(later), abs=1e-6)
    weights, mass = late_weights(mini, made, (2, 5), prompt.cut)
    start = prompt.cut + prompt.run
    for i, query in enumerate(range(start, n)):
        wanted = sum(pattern[query, j].item() for j in range(prompt.cut, start))
        assert mass[0, i].item() == pytest.approx(wanted, abs=1e-6)
        assert weights[0, i].tolist() == pytest.approx([pattern[query, j].item() for j in kept])


def test_sinks_are_first_tokens_with_many_times_the_usual_weight():
    values = torch.full((3, 1, 2, 6), 0.05)
    values[:, 0, 0, 0] = 0.6
    values[:, 0, 1, 0] = 0.4
    values[..., -1] = torch.nan
    assert sinks_of(values).tolist() == [[True, False]]
    moved = values.clone()
    moved[..., 0] += 1.0
    moved[..., 2] -= 0.02
    change = total_change(values, moved, sinks_of(values))
    assert change[0].tolist() == pytest.approx([0.02, 1.02])


def test_attention_of_the_head_that_moves_most(mini, questions):
    names = ("none", "mful", "mless")
    prompts = {c: make(mini, questions, c, length=12) for c in names}
    kept = aligned(prompts)
    found = measure_attention(mini, prompts, None)
    assert found.changed == "mless"
    # The change by hand: original tokens alone, mean over prompts, less sinks and the last token.
    before, now = (all_weights(mini, kept[c])[0].mean(0) for c in ("none", "mless"))
    sinks = sinks_of(all_weights(mini, kept["none"])[0])
    for place in ((0, 0), (1, 1), found.head):
        keys = range(int(sinks[place]), before.shape[-1] - 1)
        wanted = sum(abs((now[place][key] - before[place][key]).item()) for key in keys)
        assert found.change[place].item() == pytest.approx(wanted, abs=1e-5)
    assert found.change[found.head] == found.change.max()
    layer, head = found.head
    torch.testing.assert_close(found.original["none"].mean(0)[:-1], before[layer, head, :-1])
    frame: Any = found.frame()
    assert set(frame["model"]) == {"mini"}
    assert set(frame["panel"]) == {"original", "full"}
    assert set(frame[frame["condition"] == "none"]["panel"]) == {"original"}
    wide = frame[(frame["condition"] == "mless") & (frame["panel"] == "full")]
    assert len(wide) == len(kept["mless"][0].ids) - 1
    mechanism = found.mechanism("mless")
    assert mechanism is not None
    assert 0 < mechanism.mass < 1
    assert found.plot().to_dict()["data"]


def test_attention_is_saved_whole_and_has_no_mechanism_where_the_run_is_last(
    mini, questions, tmp_path
):
    prompts = {c: make(mini, questions, c, length=5, place="end") for c in ("none", "mless")}
    found = measure_attention(mini, prompts, None)
    assert found.mechanisms == ()
    again = Attention.load(found.save(tmp_path))
    assert again.frame().equals(found.frame())


def test_few_aligned_prompts_are_refused(mini, questions):
    prompts = {c: make(mini, questions[:3], c, length=5) for c in ("none", "mless")}
    with pytest.raises(MechheadsError, match="too few"):
        aligned(prompts)
