"""From effects to a circuit: the planted heads are found, and judged on other prompts."""

import checkpoints
import pytest
import torch
from pairs import random_pairs

from circuits import Discovery, discover, experiment
from mechheads.errors import MechheadsError
from mechheads.models.load import load
from mechheads.scoring.registry import METHODS


@pytest.mark.parametrize("method", METHODS)
def test_every_method_finds_the_planted_heads(method, planted):
    found = discover(planted, random_pairs(planted, 2, (8,) * 16), method=method, draws=2, k=2)
    # Only the later one writes to the logits of the last position by itself.
    wanted = {(1, 2)} if method in ("path", "direct") else {(0, 1), (1, 2)}
    assert wanted <= set(found.circuit.heads)


def test_no_more_than_the_planted_heads_are_needed(planted):
    found = discover(planted, random_pairs(planted, 2, (8,) * 16), draws=3)
    assert found.needed <= 2 < found.random_needed
    assert set(found.circuit.heads) <= {(0, 1), (1, 2)}
    assert found.faithfulness.faithfulness >= 0.9
    assert f"{found.needed} of 8 heads" in found.sentence


def test_prompts_that_rank_do_not_judge(planted, monkeypatch):
    seen = {}

    def spy(name, place):
        real = getattr(experiment, name)

        def watched(model, prompts, *args, **options):
            seen[name] = {pair.clean for pair in prompts.pairs}
            return real(model, prompts, *args, **options)

        monkeypatch.setattr(place, name, watched)

    for name in ("score_heads", "explained_effect_curve", "faithfulness"):
        spy(name, experiment)
    discover(planted, random_pairs(planted, 2, (8,) * 16), draws=2)
    assert len(seen["score_heads"]) == len(seen["explained_effect_curve"]) == 8
    assert not seen["score_heads"] & seen["explained_effect_curve"]
    assert seen["faithfulness"] == seen["explained_effect_curve"]


def test_a_discovery_comes_back_as_it_was(planted, tmp_path):
    found = discover(planted, random_pairs(planted, 2, (8,) * 16), draws=2, search="greedy")
    found.save(tmp_path)
    again = Discovery.load(tmp_path)
    assert again.sentence == found.sentence
    assert again.headline == found.headline
    assert again.frame().equals(found.frame())
    assert again.circuit == found.circuit
    assert torch.equal(again.sample.weights, found.sample.weights)


def test_a_context_too_short_for_head_types_is_a_note(tmp_path):
    model = load(str(checkpoints.write(tmp_path / "short", "gpt2", n_positions=8)))
    found = discover(model, random_pairs(model, 2, (6,) * 16), draws=2)
    assert found.types is None
    (note,) = (words for words in found.warnings if "Head types" in words)
    assert "takes only 8 tokens" in note
    report = found.report(tmp_path / "run").parent
    assert note.partition(". ")[0] in (report / "report.md").read_text()
    assert Discovery.load(report).warnings == found.warnings
    assert "repeated random tokens" not in (report / "report.md").read_text()


def test_settings_out_of_range_are_named(tiny):
    prompts = random_pairs(tiny, 2, (8,) * 16)
    with pytest.raises(MechheadsError, match="--k takes 1 to 8 heads"):
        discover(tiny, prompts, k=9)
    with pytest.raises(MechheadsError, match="6 prompts are too few"):
        discover(tiny, prompts.first(6))
    with pytest.raises(MechheadsError, match="direct has no direction"):
        discover(tiny, prompts, method="direct", direction="denoising")
    with pytest.raises(MechheadsError, match="position_mean"):
        discover(tiny, prompts, replacement="positionmean")
