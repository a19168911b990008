"""The probe that tells functions apart: its features, and the heads that it relies on."""

from typing import Any

import pytest
import torch

from mechheads.errors import MechheadsError
from mechheads.masking.probe import features, fit_probe, probe_functions
from mechheads.models.load import load
from tasks.questions import make_questions


def test_the_head_that_carries_the_class_comes_first():
    torch.manual_seed(0)
    z = torch.randn(80, 6, 8)
    labels = torch.arange(80) % 2
    z[:, 3, 0] += 4.0 * labels - 2
    before = torch.get_rng_state()
    importance, right = fit_probe(z, labels, torch.arange(80) >= 60, epochs=100, quiet=True)
    assert torch.equal(torch.get_rng_state(), before)
    assert importance.shape == (2, 6)
    assert importance.abs().argmax(1).tolist() == [3, 3]
    assert right.float().mean() > 0.9
    again, _ = fit_probe(z, labels, torch.arange(80) >= 60, epochs=100, quiet=True)
    assert torch.equal(importance, again)


def test_the_probe_tells_functions_apart():
    model = load("mini", quiet=True)
    sets = [
        make_questions(name, model, n=24, seed=0)[0] for name in ("retrieval", "math_calculation")
    ]
    found = probe_functions(model, sets, epochs=60, max_tokens=4, quiet=True)
    assert found.functions == ("Retrieval", "Math Calculation")
    assert found.chance == pytest.approx(0.5)
    assert found.n == 12
    assert found.accuracy > 0.8
    assert len(found.ranking("Retrieval")) == 32
    frame: Any = found.frame()
    assert len(frame) == 64
    assert frame.groupby("function")["before_elbow"].sum().to_dict() == found.elbows
    with pytest.raises(MechheadsError, match="needs two or more"):
        probe_functions(model, sets[:1], quiet=True)


def test_features_are_z_where_the_answer_is_said(tiny):
    found = features(tiny, ["Then Mary gave"] * 2, [" John Tom", ""])
    tokens = tiny.to_tokens("Then Mary gave John Tom")
    _, cache = tiny.run_with_cache(tokens)
    z = torch.cat([cache[f"blocks.{i}.attn.hook_z"][0] for i in range(2)], dim=1)
    torch.testing.assert_close(found[0], z[-3:-1].mean(0))
    torch.testing.assert_close(found[1], z[-3])


def test_features_are_of_the_five_least_likely_tokens(tiny):
    prompt, said = "Then Mary gave", " John Tom Anna James Mary Tom John"
    tokens = tiny.to_tokens(prompt + said)
    logits, cache = tiny.run_with_cache(tokens)
    likely = logits[0, :-1].log_softmax(-1)[range(tokens.shape[1] - 1), tokens[0, 1:]][-7:]
    chosen = tokens.shape[1] - 8 + likely.topk(5, largest=False).indices
    z = torch.cat([cache[f"blocks.{i}.attn.hook_z"][0] for i in range(2)], dim=1)
    torch.testing.assert_close(features(tiny, [prompt], [said])[0], z[chosen].mean(0))
