"""Path patching against the recipe of the IOI paper, written with nothing but hooks."""

from typing import Any

import checkpoints
import pytest
import torch
from pairs import random_pairs

import circuits
import tasks
from mechheads.engine.hooked import HookedEngine
from mechheads.errors import MechheadsError
from mechheads.metrics.token import METRICS, score
from mechheads.models.hooks import has_hooks
from mechheads.models.load import load
from mechheads.models.model import encoder_of
from mechheads.prompts.batches import batches
from mechheads.prompts.positions import span_positions
from mechheads.scoring import path_patching
from mechheads.scoring.path_patching import path_patch
from mechheads.scoring.registry import METHODS, score_heads

# Sequential blocks, shared keys and values, parallel blocks, and a norm between heads and stream.
KINDS = {
    "gpt2": {"n_layer": 4},
    "llama-gqa": {"num_hidden_layers": 4},
    "neox": {"num_hidden_layers": 4},
    "gemma2": {"num_hidden_layers": 4, "layer_types": ["full_attention"] * 4},
}
SENDERS = [(0, 1), (0, 3), (1, 2), (2, 0)]
# L3H0 and L3H1 share keys and values in grouped-query attention; L2H0 is also a sender.
SEVERAL = [(1, 3), (2, 0), (3, 0), (3, 1)]


@pytest.fixture(scope="module")
def deep(tmp_path_factory):
    """deep("gpt2") is a random model of four layers in float64."""
    made = {}

    def model_of(kind):
        if kind not in made:
            folder = tmp_path_factory.mktemp("deep") / kind
            made[kind] = load(
                str(checkpoints.write(folder, kind, **KINDS[kind])), dtype="float64", quiet=True
            )
        return made[kind]

    return model_of


@torch.no_grad()
def by_hooks(model, batch, sender, receivers, *, part="q", mlps="recompute", at=None, **rest):
    """The effect on each prompt of patching the paths from one sender to the receivers."""
    noising = rest.get("direction", "noising") == "noising"
    tokens = [batch.clean, batch.corrupt] if noising else [batch.corrupt, batch.clean]
    base, other = (model.run_with_cache(t)[1] for t in tokens)
    layer, head = sender
    at = list(range(batch.length)) if at is None else at

    def freeze(z, hook):
        z = base[hook.name].clone()
        if hook.layer() == layer:
            z[:, at, head] = other[hook.name][:, at, head]
        return z

    recorded = {}

    def record(x, hook):
        recorded[hook.name] = x.clone()

    def restore(x, hook):
        x = x.clone()
        for own, receiver in receivers:
            if own == hook.layer():
                x[:, :, receiver] = recorded[hook.name][:, :, receiver]
        return x

    layers = range(model.cfg.n_layers)
    hooks = [(f"blocks.{i}.attn.hook_z", freeze) for i in layers]
    if mlps == "frozen":
        hooks += [(f"blocks.{i}.hook_mlp_out", lambda x, hook: base[hook.name]) for i in layers]
    names = {f"blocks.{i}.attn.hook_{part}" for i, _ in receivers}
    model.set_ungroup_grouped_query_attention(model.cfg.n_key_value_heads is not None)
    try:
        before = model(tokens[0])
        after = model.run_with_hooks(tokens[0], fwd_hooks=[*hooks, *((n, record) for n in names)])
        if receivers:
            after = model.run_with_hooks(tokens[0], fwd_hooks=[(n, restore) for n in names])
    finally:
        model.set_ungroup_grouped_query_attention(False)
    before, after = (
        METRICS["logit_diff"](score(x[:, -batch.steps :], batch)) for x in (before, after)
    )
    return before - after if noising else after - before


def check(model, prompts, receivers, senders=SENDERS, *, at=None, least=1e-4, **options):
    """Ours are the effects that hooks give, and 0 for all other senders."""
    ours = path_patch(model, prompts, to=receivers or "logits", senders=senders, **options)
    wanted = torch.zeros_like(ours.values)
    options.pop("positions", None)
    for batch in batches(encoder_of(model), prompts):
        places = None if at is None else [i % (batch.length - batch.steps + 1) for i in at]
        for layer, head in senders:
            found = by_hooks(model, batch, (layer, head), receivers, at=places, **options)
            wanted[batch.pairs, layer, head] = found.float()
    torch.testing.assert_close(ours.values, wanted, rtol=1e-4, atol=1e-6)
    for layer, head in senders:
        assert wanted[:, layer, head].abs().max() >= least, "an effect too small to test anything"
    assert not has_hooks(model)
    return ours.values


@pytest.mark.hooked
@pytest.mark.parametrize("mlps", ["recompute", "frozen"])
@pytest.mark.parametrize("kind", ["gpt2", "llama-gqa", "neox"])
def test_paths_to_the_logits_are_those_of_the_paper(kind, mlps, deep):
    model = deep(kind)
    prompts = random_pairs(model, -2)
    check(model, prompts, [], [*SENDERS, (3, 3)], mlps=mlps)
    check(model, prompts, [], mlps=mlps, direction="denoising")


@pytest.mark.hooked
@pytest.mark.parametrize("mlps", ["recompute", "frozen"])
@pytest.mark.parametrize("part", ["q", "k", "v"])
@pytest.mark.parametrize("kind", ["gpt2", "llama-gqa", "neox"])
def test_paths_to_heads_are_those_of_the_paper(kind, part, mlps, deep):
    model = deep(kind)
    prompts = random_pairs(model, 3)
    for receivers in ([(3, 2)], [(3, 0), (3, 1)], SEVERAL):
        check(model, prompts, receivers, part=part, mlps=mlps)
    check(model, prompts, SEVERAL, part=part, mlps=mlps, direction="denoising")


def test_recomputed_mlps_change_the_effects_of_paths(deep):
    model = deep("gpt2")
    prompts = random_pairs(model, -2)
    for to in ("logits", "L3H2"):
        both = [
            path_patch(model, prompts, to=to, mlps=mlps).values for mlps in ("recompute", "frozen")
        ]
        assert (both[0] - both[1])[:, :3].abs().min() > 1e-6
    # A parallel MLP is beside the heads of its layer: below the receiver there is none.
    parallel = deep("neox")
    prompts = random_pairs(parallel, 3)
    both = [path_patch(parallel, prompts, to="L1H2", mlps=mlps) for mlps in ("recompute", "frozen")]
    torch.testing.assert_close(both[0].values, both[1].values, rtol=1e-5, atol=1e-7)


@pytest.mark.hooked
@pytest.mark.parametrize("mlps", ["recompute", "frozen"])
@pytest.mark.parametrize("tokens", [1, 2])
def test_senders_are_changed_at_the_chosen_positions_of_the_prompt(tokens, mlps, deep):
    model = deep("gpt2")
    prompts = random_pairs(model, 3, (8, 8, 11), tokens=tokens)
    check(model, prompts, [], at=[-1], positions="END", mlps=mlps)
    for positions, at in (("END", [-1]), ([3, -2], [3, -2]), ("4,END", [4, -1])):
        check(model, prompts, SEVERAL, part="v", at=at, positions=positions, mlps=mlps)
    before = path_patch(model, prompts, to=SEVERAL, positions=[0, 2]).values
    assert before.abs().max() < 1e-6  # both prompts are the same up to there


@pytest.mark.hooked
def test_answers_of_several_tokens_are_patched_to_their_end(deep):
    model = deep("llama-gqa")
    prompts = random_pairs(model, 3, (8, 8, 11), tokens=2)
    for receivers in ([], SEVERAL):
        check(model, prompts, receivers)


@pytest.mark.hooked
def test_paths_through_norms_after_attention_need_recomputed_mlps(deep):
    model = deep("gemma2")
    prompts = random_pairs(model, 3)
    for receivers in ([], SEVERAL):
        check(model, prompts, receivers, part="k")
        with pytest.raises(MechheadsError, match="norm between"):
            path_patch(model, prompts, to=receivers or "logits", mlps="frozen")


@pytest.mark.hooked
@pytest.mark.parametrize("mlps", ["recompute", "frozen"])
def test_paths_of_sparse_models_go_through_their_gates(mlps):
    model = load("mini-sparse", dtype="float64")
    prompts = random_pairs(model, -2)
    for receivers in ([], [(3, 4), (3, 6)], [(2, 7), (3, 4)]):
        found = check(model, prompts, receivers, [(0, 1), (1, 2)], least=0, mlps=mlps)
        assert found.abs().max() > 1e-4


@pytest.mark.parametrize("kind", ["gpt2", "llama-gqa", "neox"])
def test_both_engines_give_the_same_paths(kind, deep, monkeypatch):
    model = deep(kind)
    prompts = random_pairs(model, 3, (8, 8, 11), tokens=2)
    options = [{"to": to, "part": "v"} for to in ("logits", "L3H2", SEVERAL)]
    direct = [path_patch(model, prompts, **some).values for some in options]
    monkeypatch.setattr(path_patching, "engine_for", HookedEngine)
    hooked = [path_patch(model, prompts, **some).values for some in options]
    torch.testing.assert_close(direct, hooked, rtol=1e-4, atol=1e-6)


def test_effects_do_not_depend_on_what_runs_together(deep):
    model = deep("gpt2")
    prompts = random_pairs(model, 3)
    whole = path_patch(model, prompts, to=SEVERAL)
    for budget in (1, 60):
        some = path_patch(model, prompts, to=SEVERAL, budget=budget)
        torch.testing.assert_close(some.values, whole.values, rtol=1e-4, atol=1e-6)
    some = path_patch(model, prompts, to=SEVERAL, senders=SENDERS)
    for layer, head in SENDERS:
        torch.testing.assert_close(
            some.values[:, layer, head], whole.values[:, layer, head], rtol=1e-4, atol=1e-6
        )
    assert (whole.values[:, 3] == 0).all()
    assert (whole.values[:, :3] != 0).all()


def test_only_the_planted_path_has_an_effect(planted):
    prompts = random_pairs(planted, 3)
    found = path_patch(planted, prompts, to="L1H2", part="v").scores
    assert found[0, 1].abs() > 1e-4
    found[0, 1] = 0
    assert found.abs().max() < 1e-6
    assert path_patch(planted, prompts, to="L1H0", part="v").scores.abs().max() < 1e-6


def test_options_are_read_from_text_lists_and_circuits(deep):
    model = deep("gpt2")
    prompts = random_pairs(model, 3)
    assert METHODS["path"].flags == ("to", "part", "senders", "mlps", "positions")
    text = {"to": "L2H1, L3H2", "senders": "L0H1,L1H2", "mlps": "frozen", "positions": "3,-1"}
    ours = score_heads(model, prompts, "path", part="v", **text)
    others = [
        {"to": [(2, 1), "L3H2"], "senders": [(0, 1), (1, 2)], "positions": (3, -1)},
        {
            "to": circuits.Circuit("receivers", "L3H2,L2H1"),
            "senders": circuits.Circuit("senders", "L0H1,L1H2"),
            "positions": [8, 3],
        },
    ]
    for options in others:
        again = path_patch(model, prompts, part="v", mlps="frozen", **options)
        torch.testing.assert_close(again.values, ours.values, rtol=0, atol=0)
    assert ours.settings == {
        "direction": "noising",
        "to": "L2H1.v,L3H2.v",
        "senders": "L0H1,L1H2",
        "mlps": "frozen",
        "positions": "3,-1",
    }
    assert path_patch(model, prompts).settings == {
        "direction": "noising",
        "to": "logits",
        "senders": "all",
        "mlps": "recompute",
        "positions": "all",
    }
    assert (
        score_heads(model, prompts, "path", senders="None", positions="None").settings["senders"]
        == "all"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"to": (0, 1)}, r"L0H1 cannot be a receiver\. .* layer from 1 to 1 and .* 3\."),
        ({"to": "L1H0,L1H4"}, "L1H4 cannot be a receiver"),
        ({"to": "logit"}, "'logit' is not a head.* Or use logits alone"),
        ({"to": "logits,L1H0"}, "Or use logits alone"),
        ({"to": ""}, "to has no receivers"),
        ({"to": []}, "to has no receivers"),
        ({"to": (1, 1), "part": "z"}, "Unknown input 'z'"),
        ({"senders": "L0H9"}, "There is no L0H9: layers are 0 to 1, heads 0 to 3"),
        ({"senders": "L0H1,L7H0"}, "There is no L7H0"),
        ({"senders": "heads"}, "'heads' is not a head"),
        ({"senders": []}, "senders has no heads"),
        ({"senders": "L0H1,L1H3", "to": "L1H0"}, r"L1H3 cannot be a sender.*\(L1H0\.q\)"),
        ({"mlps": "recomputed"}, "Unknown value for mlps: 'recomputed'. Did you mean 'recompute'"),
        ({"positions": [1, 9]}, "no position 9 in a prompt of 9 tokens. Choose from -9 to 8"),
        ({"positions": "-10"}, "no position -10"),
        ({"positions": "S1"}, "Unknown span 'S1'"),
        ({"positions": "2.5"}, "Unknown span '2.5'"),
        ({"positions": []}, "positions is empty"),
        ({"positions": " ,"}, "positions is empty"),
    ],
)  # fmt: skip
def test_wrong_options_are_named_in_one_line(options, message, tiny):
    with pytest.raises(MechheadsError, match=message) as caught:
        path_patch(tiny, random_pairs(tiny, 3), **options)
    assert "\n" not in str(caught.value)


def test_positions_count_from_the_shortest_prompt_on(tiny):
    prompts = random_pairs(tiny, 3, (12, 8, 10))
    with pytest.raises(MechheadsError, match="no position 9 in a prompt of 8 tokens"):
        path_patch(tiny, prompts, positions=[9])


def test_positions_by_meaning_are_those_of_every_prompt(tiny):
    prompts = tasks.make("ioi", tiny, n=6)
    where: dict[str, Any] = {"senders": "L0H1", "to": "L1H2", "part": "v", "quiet": True}
    found = path_patch(tiny, prompts, positions="S2", **where)
    for i, pair in enumerate(prompts):
        (at,) = span_positions(encoder_of(tiny), prompts[i : i + 1], ["S2"])[0]
        alone = path_patch(tiny, prompts[i : i + 1], positions=list(at), **where)
        torch.testing.assert_close(found.values[i], alone.values[0], atol=1e-5, rtol=0)
        assert pair.spans
