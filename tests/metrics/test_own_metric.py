"""A metric is any function of the logits, the answers and the clean run: kl, and yours."""

import pytest
import torch

import circuits
import mechheads
import tasks
from mechheads import MechheadsError, metrics
from mechheads.metrics import Scores
from mechheads.models.model import encoder_of


def last_logits(model, prompts, side="clean"):
    """Logits after every prompt, one pass each."""
    rows = [encoder_of(model).ids(getattr(pair, side)) for pair in prompts]
    with torch.inference_mode():
        return torch.stack([model(torch.tensor([row]))[0, -1] for row in rows])


def divergence(clean, other):
    """KL(clean || other), by torch's own function."""
    return torch.nn.functional.kl_div(
        other.log_softmax(-1), clean.log_softmax(-1), reduction="none", log_target=True
    ).sum(-1)


@pytest.mark.parametrize("task", ["ioi", "greater_than"])  # answers of one token, and of two
def test_kl_is_minus_the_divergence_from_the_clean_run(task, tiny):
    prompts = tasks.make(task, tiny, n=6)
    found = mechheads.evaluate(tiny, prompts, "kl", quiet=True)
    clean, corrupt = (last_logits(tiny, prompts, side) for side in ("clean", "corrupt"))
    assert found.clean["kl"].abs().max() < 1e-5
    assert torch.allclose(found.corrupt["kl"], -divergence(clean, corrupt), atol=1e-5)


@pytest.mark.parametrize("task", ["ioi", "greater_than"])
def test_effects_on_kl_equal_plain_hooks(task, tiny):
    prompts = tasks.make(task, tiny, n=4)
    found = mechheads.score_heads(
        tiny, prompts, "patch", "kl", replacement="zero", heads=[(1, 2)], quiet=True
    )
    clean = last_logits(tiny, prompts)

    def close(z, hook):
        z[:, :, 2] = 0
        return z

    with tiny.hooks(fwd_hooks=[("blocks.1.attn.hook_z", close)]):
        without = last_logits(tiny, prompts)
    expected = divergence(clean, without)  # lost: from 0 to minus the divergence
    assert torch.allclose(found.values[:, 1, 2], expected, atol=1e-5)


def test_a_circuit_can_be_found_by_kl():
    model = mechheads.load("mini")
    prompts = tasks.make("ioi", model, n=16)
    found = circuits.discover(model, prompts, metric="kl", method="ig", draws=2, quiet=True)
    assert found.curve.explained[[0, -1]].tolist() == [0.0, 1.0]
    assert found.headline["metric"] == "kl"
    assert "KL divergence" in found.sentence


def test_attribution_says_that_the_gradient_of_kl_vanishes_in_the_clean_run(tiny):
    prompts = tasks.make("ioi", tiny, n=4)
    for method in ("attribution", "hybrid"):
        with pytest.raises(MechheadsError, match="largest in the clean run"):
            mechheads.score_heads(tiny, prompts, method, "kl", quiet=True)
    with pytest.raises(MechheadsError, match="largest in the clean run"):
        mechheads.edge_attribution(tiny, prompts, "kl", quiet=True)
    found = mechheads.score_heads(
        tiny, prompts, "attribution", "kl", direction="denoising", quiet=True
    )
    assert found.values.abs().max() > 0


def margin(scores: Scores):
    """Logit of the answer above the mean logit."""
    assert scores.logits is not None
    answer = scores.logits[..., torch.arange(len(scores.tokens)), scores.tokens[:, 0]]
    return answer - scores.logits.mean(-1)


def test_a_function_is_a_metric_everywhere(tiny, tmp_path):
    prompts = tasks.make("ioi", tiny, n=8)
    logits = last_logits(tiny, prompts)
    ids = [encoder_of(tiny).plain_ids(pair.answers[0])[-1] for pair in prompts]
    expected = logits[range(8), ids] - logits.mean(-1)
    found = mechheads.evaluate(tiny, prompts, margin, quiet=True)
    assert torch.allclose(found.clean["margin"], expected, atol=1e-5)
    for method in ("patch", "attribution", "ig", "path"):
        effects = mechheads.score_heads(tiny, prompts, method, margin, quiet=True)
        assert torch.allclose(effects.clean, expected, atol=1e-4)
    assert "margin" in str(effects.plot().to_dict())
    again = type(effects).load(effects.save(tmp_path))  # a session that does not know the metric
    assert again.metric == "margin"
    found = circuits.discover(tiny, prompts, metric=margin, draws=2, quiet=True)
    assert found.report(tmp_path / "report").exists()
    mechheads.ablate(tiny, prompts, "L0H1", margin, quiet=True)


def test_a_relative_metric_of_yours_takes_the_fast_path(tiny, monkeypatch):
    prompts = tasks.make("ioi", tiny, n=4)
    name = "difference"

    @mechheads.register_metric(name, relative=True, replace=True)
    def difference(scores):
        assert scores.logits is None
        return scores.logprob[..., 0] - scores.logprob[..., 1]

    found = mechheads.score_heads(tiny, prompts, "patch", name, quiet=True)
    ours = mechheads.score_heads(tiny, prompts, "patch", "logit_diff", quiet=True)
    assert torch.allclose(found.values, ours.values, atol=1e-6)


WRONG = {
    "one number": (lambda s: s.logprob.mean(), r"returned shape \(\), expected"),
    "not reduced": (lambda s: s.logprob, "returned shape"),
    "not a tensor": (lambda s: 3.0, "returned float, expected a tensor"),
    "NaN": (lambda s: s.logprob[..., 0] * torch.nan, "returned NaN"),
    "raises": (lambda s: s.nothing, "raised AttributeError"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_metric_that_is_wrong_is_named(case, tiny):
    function, message = WRONG[case]
    prompts = tasks.make("ioi", tiny, n=4)

    def mine(scores):
        return function(scores)

    for measure in (mechheads.evaluate, mechheads.score_heads):
        with pytest.raises(MechheadsError, match=message) as caught:
            measure(tiny, prompts, metric=mine, quiet=True)
        assert "The metric mine" in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_metric_without_a_gradient_is_refused_by_gradient_methods(tiny):
    prompts = tasks.make("ioi", tiny, n=4)

    def constant(scores):
        return torch.zeros_like(scores.logprob[..., 0].detach())

    with pytest.raises(MechheadsError, match="constant has no gradient"):
        mechheads.score_heads(tiny, prompts, "attribution", constant, quiet=True)


def test_what_is_no_metric_at_all():
    with pytest.raises(MechheadsError, match="a name or a function of Scores, got int"):
        metrics.find(3)
    with pytest.raises(MechheadsError, match="Did you mean 'kl'"):
        metrics.find("klx")
