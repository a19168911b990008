"""AtP*: exact where a softmax is saturated; its parts equal brute force with hooks."""

import pytest
import torch
from compiled import CASES, load_compiled
from pairs import random_pairs

import tasks
from mechheads.engine.hooked import HookedEngine
from mechheads.errors import MechheadsError
from mechheads.metrics.token import METRICS, score
from mechheads.models.hooks import embed
from mechheads.models.load import load
from mechheads.models.model import encoder_of
from mechheads.prompts.batches import batches
from mechheads.scoring.activation_patching import patch
from mechheads.scoring.attribution_patching import attribution, ig
from mechheads.scoring.backward import layers
from mechheads.scoring.backward.atp import Secants, atp

DIRECTIONS = ("noising", "denoising")


class Plain:
    """The rule that changes nothing."""

    frozen_norms = False

    def prepare(self, layer):
        return {}

    def at_neurons(self, parts, known, slopes):
        return {}

    def at_heads(self, parts, known, slopes):
        return {}


def tokens_of(model, prompts):
    (batch,) = batches(encoder_of(model), prompts)
    return batch


def slope_at(model, batch, name, hooks=()):
    """The gradient of the logit difference at a hook point of the clean run."""
    kept = {}

    def keep(value, hook):
        kept[name] = value
        return value

    with torch.enable_grad():
        logits = model.run_with_hooks(
            embed(model, batch.clean).detach().requires_grad_(),
            start_at_layer=0,
            fwd_hooks=[(name, keep), *hooks],
        )
        value = METRICS["logit_diff"](score(logits[:, -batch.steps :], batch)).sum()
        return torch.autograd.grad(value, kept[name])[0]


@pytest.mark.parametrize("backend", ["hooked", "bridge"])
@pytest.mark.parametrize("kind", ["gpt2", "llama-gqa", "neox", "gemma2"])
@pytest.mark.hooked
def test_without_a_rule_it_is_attribution(kind, backend, checkpoint):
    model = load(str(checkpoint(kind)), backend=backend)
    prompts = random_pairs(model, 3)
    shared = {"drop": False, "budget": None, "quiet": True}
    for direction in DIRECTIONS:
        settings = {"direction": direction}
        ours = layers.score(model, prompts, None, "plain", settings, Plain(), **shared)
        wanted = attribution(model, prompts, direction=direction)
        torch.testing.assert_close(ours.values, wanted.values, rtol=1e-3, atol=1e-6)
        torch.testing.assert_close(ours.clean, wanted.clean)
        torch.testing.assert_close(ours.corrupt, wanted.corrupt)


@pytest.mark.hooked
@pytest.mark.parametrize("part", ["q", "k"])
@pytest.mark.parametrize("kind", ["gpt2", "llama-gqa", "gemma2"])
def test_the_corrected_slope_gives_the_exact_pattern_and_a_linear_rest(kind, part, checkpoint):
    # The effect of exchanging a head's queries (or keys): its pattern computed by the model's own
    # hooks, times the gradient at the pattern, from autograd through the whole model.
    model = load(str(checkpoint(kind)))
    prompts = random_pairs(model, 3)
    batch = tokens_of(model, prompts)
    engine, index = HookedEngine(model), model.cfg.n_layers - 1
    with torch.no_grad():
        base, other = (engine.cache(t, 0, batch.steps) for t in (batch.clean, batch.corrupt))
    names = {name: f"blocks.{index}.attn.hook_{name}" for name in ("q", "k", "pattern")}
    _, corrupt = model.run_with_cache(batch.corrupt)
    _, clean = model.run_with_cache(batch.clean)
    exchanged = {}

    def take(pattern, hook):
        exchanged["pattern"] = pattern

    model.run_with_hooks(
        batch.clean,
        fwd_hooks=[
            (names[part], lambda value, hook: corrupt[hook.name]),
            (names["pattern"], take),
        ],
    )
    change = exchanged["pattern"] - clean[names["pattern"]]
    wanted = (slope_at(model, batch, names["pattern"]) * change).sum((2, 3))
    rule = Secants(neurons=False)
    with torch.no_grad():
        layer = layers._run_layer(model, index, base, other, rule)
        known = rule.prepare(layer)
        metric = METRICS["logit_diff"]
        slope = layers._end_slope(model, engine, base, batch, metric, rule)
        names = ("scores", "pattern", "q", "k")
        inputs = {name: layer.parts[name] for name in names}
        slopes = layers.gradients({"out": slope}, layer.parts, inputs)
        corrected = slopes[part] + rule.at_heads(layer.parts, known, slopes)[part]
    step = corrupt[f"blocks.{index}.attn.hook_{part}"] - clean[f"blocks.{index}.attn.hook_{part}"]
    found = (corrected * step).sum((1, 3))
    if found.shape != wanted.shape:  # keys that several heads share
        wanted = wanted.unflatten(1, (found.shape[1], -1)).sum(2)
    assert (found - (slopes[part] * step).sum((1, 3))).abs().max() > 1e-5  # not what it was
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_it_is_exact_where_attribution_sees_nothing(direction):
    model = load("known/saturated")
    prompts = tasks.make("known/saturated", model, n=16)
    exact = patch(model, prompts, direction=direction, quiet=True)
    assert abs(float(attribution(model, prompts, direction=direction).scores[0, 1])) < 1e-6
    ours = atp(model, prompts, direction=direction)
    assert float(exact.scores[0, 1]) > 5
    torch.testing.assert_close(ours.values, exact.values, rtol=1e-4, atol=1e-3)


@pytest.mark.shared
@pytest.mark.hooked
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_on_compiled_models_it_finds_every_head_that_patching_finds(case, direction, shared):
    model, prompts = load_compiled(shared / "oracles", case)
    exact = patch(model, prompts, direction=direction, quiet=True).scores.abs()
    found = atp(model, prompts, direction=direction, quiet=True).scores.abs()
    assert exact.max() > 0.1
    assert ((found > 1e-3) == (exact > 1e-3)).all()
    dropped = atp(model, prompts, direction=direction, drop=True, quiet=True).scores.abs()
    assert ((dropped > 1e-3) == (exact > 1e-3)).all()


@pytest.mark.shared
@pytest.mark.hooked
@pytest.mark.parametrize(("case", "head"), [(21, (1, 0)), (98, (1, 0))])
def test_what_it_finds_there_no_plain_gradient_finds(case, head, shared):
    model, prompts = load_compiled(shared / "oracles", case)
    for method in (attribution, ig):
        assert abs(float(method(model, prompts, quiet=True).scores[head])) < 1e-3
    exact, ours = (method(model, prompts, quiet=True).scores[head] for method in (patch, atp))
    torch.testing.assert_close(ours, exact, rtol=0.01, atol=1e-3)
    assert abs(float(atp(model, prompts, neurons=False, quiet=True).scores[head])) < 1e-3


@pytest.mark.hooked
def test_dropping_a_layer_is_a_run_whose_gradient_does_not_flow_through_it(checkpoint):
    model = load(str(checkpoint("gpt2")))
    prompts = random_pairs(model, 3)
    batch = tokens_of(model, prompts)
    count = model.cfg.n_layers
    _, clean = model.run_with_cache(batch.clean)
    _, corrupt = model.run_with_cache(batch.corrupt)

    def stop(value, hook):
        return value.detach()

    runs = []
    for dropped in (None, *range(count)):
        names = [f"blocks.{dropped}.hook_{part}" for part in ("attn_out", "mlp_out")]
        hooks = [(name, stop) for name in names] if dropped is not None else []
        columns = []
        for layer in range(count):
            z = f"blocks.{layer}.attn.hook_z"
            own = [] if dropped == layer else hooks  # a head's own layer is not dropped for it
            slope = slope_at(model, batch, z, own)
            columns.append(((corrupt[z] - clean[z]) * slope).sum((1, 3)))
        runs.append(-torch.stack(columns, 1))
    others = [[runs[0][:, i], *(runs[1 + d][:, i] for d in range(count) if d != i)]
              for i in range(count)]  # fmt: skip
    sizes = torch.stack([torch.stack(part).abs().mean(0) for part in others], 1)
    shared = {"drop": True, "budget": None, "quiet": True}
    settings = {"direction": "noising"}
    ours = layers.score(model, prompts, None, "plain", settings, Plain(), **shared)
    torch.testing.assert_close(ours.values[batch.pairs].abs(), sizes, rtol=1e-3, atol=1e-6)
    assert (ours.values[batch.pairs].sign() == runs[0].sign()).all()


def test_graddrop_sees_a_head_whose_paths_cancel():
    terms = [torch.tensor([[0.0]]), torch.tensor([[2.0]]), torch.tensor([[-3.0]])]
    assert layers._mean_size(terms, 0).item() == pytest.approx(-5 / 3)
    assert layers._mean_size(terms[1:], 1).item() == pytest.approx(7 / 3)


def test_it_is_listed_with_its_options_and_refuses_what_it_cannot_use(tiny):
    prompts = random_pairs(tiny, 3)
    with pytest.raises(MechheadsError, match="accuracy is a step function"):
        atp(tiny, prompts, "accuracy")
    with pytest.raises(MechheadsError, match="8 or more random subsets"):
        atp(tiny, prompts, subsets=3)
    found = atp(tiny, prompts, subsets=16)
    assert found.notes["subsets"] == 16
    assert found.notes["largest_missed"] > 0
