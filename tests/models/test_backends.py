"""Both kinds of model give the same numbers, per architecture, with every engine."""

from dataclasses import replace
from typing import Any

import checkpoints
import pytest
import torch
import transformers
from pairs import random_pairs

import circuits
import mechheads
import tasks
from mechheads import MechheadsError
from mechheads.engine.cached_run import measure
from mechheads.engine.direct import DirectEngine
from mechheads.engine.hooked import HookedEngine
from mechheads.engine.interventions import Replace
from mechheads.engine.select import engine_for
from mechheads.filler.average_attention import measure_attention
from mechheads.filler.insertion import make
from mechheads.filler.redistribution import arm
from mechheads.masking.experiment import mask_tasks
from mechheads.metrics import METRICS, text
from mechheads.models.configs import NO_BOS
from mechheads.models.hooks import attention_parts, embed
from mechheads.models.load import find_backend
from mechheads.models.model import encoder_of, shape_of
from mechheads.models.wrap import lens_of, wrap
from mechheads.prompts.batches import batches
from mechheads.prompts.partitions import QuestionSplit
from mechheads.scoring.gate_fitting import FitSettings
from tasks.questions import make_questions

HAS_HOOKED = find_backend(None) == "hooked"
BACKENDS = ["hooked", "bridge"] if HAS_HOOKED else ["bridge"]
both = pytest.mark.skipif(not HAS_HOOKED, reason="TransformerLens 4 has no HookedTransformer")
# Architectures whose blocks are computed from their weights on a bridge too.
DIRECT = """gpt2 gpt2-wide gpt-neo gptj neox neox-sequential opt llama llama-gqa llama3
llama-tied-wide-heads mistral mixtral qwen2 qwen2-tied qwen3 phi phi3 olmo gemma""".split()


def hf_model(checkpoint, kind="llama-gqa", **options):
    folder = checkpoint(kind)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, **options)
    return model.eval(), transformers.AutoTokenizer.from_pretrained(folder)


def by_plain_hooks(model, prompts, layer, head):
    """The logit difference lost with one head patched: TransformerLens's own run_with_hooks."""
    (batch,) = batches(encoder_of(model), prompts)
    name, kept = f"blocks.{layer}.attn.hook_z", []
    own = lens_of(model).model

    def keep(z, hook):
        kept.append(z)
        return z

    def put(z, hook):
        z = z.clone()
        z[:, :, head] = kept[0][:, :, head]
        return z

    def value(logits):
        ids = [[t[0] for t in row] for row in batch.choices.tolist()]
        last = logits[:, -1].log_softmax(-1)
        return torch.stack([last[i, a] - last[i, b] for i, (a, b) in enumerate(ids)])

    with torch.inference_mode():
        own.run_with_hooks(batch.corrupt, fwd_hooks=[(name, keep)])
        patched = own.run_with_hooks(batch.clean, fwd_hooks=[(name, put)])
        return value(own(batch.clean)) - value(patched)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", checkpoints.ARCHITECTURES)
def test_effects_equal_plain_hooked_runs(kind, backend, checkpoint):
    model = mechheads.load(str(checkpoint(kind)), backend=backend)
    prompts = random_pairs(model, 3)
    effects = mechheads.score_heads(model, prompts, "patch", quiet=True)
    for layer, head in ((0, 1), (1, 3)):
        expected = by_plain_hooks(model, prompts, layer, head)
        torch.testing.assert_close(effects.values[:, layer, head], expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", DIRECT)
def test_the_direct_engine_is_used_and_equals_the_hooked_one(kind, backend, checkpoint):
    model = mechheads.load(str(checkpoint(kind)), backend=backend)
    assert isinstance(engine_for(model), DirectEngine)
    (batch,) = batches(encoder_of(model), random_pairs(model, 2))
    keep = (torch.rand(5, *shape_of(model).grid) > 0.4).float()
    found = []
    with torch.inference_mode():
        for engine in (HookedEngine(model), DirectEngine(model)):
            base, other = (engine.cache(t, 2, batch.steps) for t in (batch.clean, batch.corrupt))
            end = engine.rerun(base, Replace(keep, other.z))
            found.append(measure(model, end, batch, METRICS["logit_diff"]))
    torch.testing.assert_close(found[0], found[1], atol=2e-5, rtol=1e-4)


def values_or_error(model, prompts, method):
    try:
        return mechheads.score_heads(model, prompts, method, quiet=True).values
    except MechheadsError as error:
        return str(error)


@both
@pytest.mark.parametrize("kind", checkpoints.ARCHITECTURES)
def test_every_method_gives_the_same_on_both(kind, checkpoint):
    one, two = (mechheads.load(str(checkpoint(kind)), backend=b) for b in BACKENDS)
    assert encoder_of(one).prepend_bos == encoder_of(two).prepend_bos
    architecture = checkpoints.ARCHITECTURES[kind][0]
    assert encoder_of(one).prepend_bos == (architecture not in NO_BOS)
    # TransformerLens's conversion does not read the context length of some architectures.
    assert replace(shape_of(one), context=0) == replace(shape_of(two), context=0)
    prompts = random_pairs(one, 3, tokens=2 if kind == "llama-gqa" else 1)
    for method in ("attribution", "ig", "path", "direct"):
        ours, theirs = (values_or_error(m, prompts, method) for m in (one, two))
        if isinstance(ours, str):
            assert ours == theirs
        else:
            torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", [k for k in checkpoints.ARCHITECTURES if k != "olmo-clipped"])
def test_z_follows_every_part_that_is_replaced(kind, backend, checkpoint):
    model = mechheads.load(str(checkpoint(kind)), backend=backend)
    with torch.inference_mode():
        entering = embed(model, torch.arange(5, 12)[None])
        plain = attention_parts(model, 1, entering)
        for part in ("q", "k", "v", "pattern"):
            given = plain[part].flip(1) if part == "pattern" else 2 * plain[part]
            found = attention_parts(model, 1, entering, {part: given})
            times = shape_of(model).heads // found["v"].shape[2]
            v = found["v"].repeat_interleave(times, dim=2)
            by_hand = torch.einsum("rhqk,rkhd->rqhd", found["pattern"], v)
            torch.testing.assert_close(found["z"], by_hand, atol=2e-5, rtol=1e-4)
            assert torch.equal(found[part], given)
            # A norm of queries and keys makes their size irrelevant.
            normed = part in "qk" and hasattr(model.blocks[1].attn, "q_norm")
            assert normed or not torch.allclose(found["z"], plain["z"], atol=1e-5)


@both
@pytest.mark.parametrize("kind", ["gpt2", "llama-gqa", "phi", "qwen3"])
def test_parts_edges_patterns_and_text_are_the_same_on_both(kind, checkpoint):
    one, two = (mechheads.load(str(checkpoint(kind)), backend=b) for b in BACKENDS)
    prompts = random_pairs(one, 3)
    close: dict[str, Any] = {"atol": 2e-5, "rtol": 1e-4}
    for part in ("q", "k", "v", "pattern", "mean"):
        found = [
            mechheads.score_heads(m, prompts, "patch", replacement=part, quiet=True).values
            for m in (one, two)
        ]
        torch.testing.assert_close(*found, **close)
    edges = [mechheads.edge_attribution(m, prompts, quiet=True) for m in (one, two)]
    for part, values in edges[0].values.items():
        torch.testing.assert_close(values, edges[1].values[part], **close)
    text = prompts[0].clean
    weights = [mechheads.attend(m, text).weights for m in (one, two)]
    torch.testing.assert_close(*weights, **close)
    said = [
        mechheads.generate(m, text, ablate="L0H1", positions="all", quiet=True) for m in (one, two)
    ]
    assert said[0] == said[1]


@both
@pytest.mark.parametrize("name", ["mini", "mini-sparse"])
def test_the_embedded_pair_gives_the_same_on_both(name):
    one, two = (mechheads.load(name, backend=b) for b in BACKENDS)
    prompts = tasks.make("ioi", one, n=16)
    found = [
        circuits.discover(m, prompts, method="attribution", draws=2, quiet=True) for m in (one, two)
    ]
    torch.testing.assert_close(found[0].curve.values, found[1].curve.values, atol=2e-4, rtol=1e-4)
    assert found[0].circuit.heads == found[1].circuit.heads
    assert torch.equal(found[0].edges.used, found[1].edges.used)  # gates close the same edges
    assert found[0].sparse == found[1].sparse == (name == "mini-sparse")


@both
def test_gates_answers_and_filler_are_the_same_on_both():
    models = [mechheads.load("mini", backend=b) for b in BACKENDS]
    prompts = tasks.make("math", models[0], n=8)
    few = FitSettings(seeds=2, updates=6, batch=4)
    gates = [mechheads.fit_gates(m, prompts, few, quiet=True) for m in models]
    torch.testing.assert_close(gates[0].effects, gates[1].effects, atol=1e-4, rtol=1e-3)
    (made,) = make_questions("retrieval", models[0], n=24)
    ranked, asked = made.only(range(8)).split_at(4)
    split = QuestionSplit((ranked,), (asked,))
    masked = [
        mask_tasks(m, split, [text.find("exact")], k="4", draws=2, max_tokens=3, quiet=True)
        for m in models
    ]
    assert masked[0].functions[0].said == masked[1].functions[0].said
    attention = []
    for model in models:
        filled = {c: make(model, made.items, c, length=4) for c in ("none", "mless")}
        attention.append(measure_attention(model, filled, None).frame())
    one, two = (frame.select_dtypes("float").to_numpy() for frame in attention)
    assert abs(one - two).max() < 1e-5


@both
@pytest.mark.shared
def test_a_real_pretrained_model_gives_the_same_on_both(shared):
    folder = str(shared / "models" / "tinyllamas-stories15M")
    models = [mechheads.load(folder, backend=b) for b in BACKENDS]
    names = "Tom,Tim,Ben,Sam,Max,Sue,Jack,Anna,Lucy,Bob,Amy,Leo"
    prompts = tasks.make("ioi", models[0], n=8, names=names)
    for method in ("patch", "attribution"):
        found = [mechheads.score_heads(m, prompts, method, quiet=True) for m in models]
        one, two = (effects.values for effects in found)
        torch.testing.assert_close(one, two, atol=5e-5, rtol=0)  # rounding of logits near 20
        torch.testing.assert_close(found[0].scores, found[1].scores, atol=1e-5, rtol=0)
    assert all(isinstance(engine_for(m), DirectEngine) for m in models)


@both
@pytest.mark.smollm2
def test_smollm2_gives_the_same_on_both():
    models = [mechheads.load("smollm2", backend=b) for b in BACKENDS]
    prompts = tasks.make("ioi", models[0], n=4)
    found = [mechheads.score_heads(m, prompts, "attribution", quiet=True).values for m in models]
    torch.testing.assert_close(*found, atol=1e-5, rtol=0)
    assert all(isinstance(engine_for(m), DirectEngine) for m in models)
    few = FitSettings(seeds=2, updates=3, batch=4)
    gates = [mechheads.fit_gates(m, prompts, few, quiet=True).effects for m in models]
    torch.testing.assert_close(*gates, atol=1e-5, rtol=0)


@both
@pytest.mark.parametrize("kind", ["llama-gqa", "llama3", "neox", "phi", "qwen2"])
def test_a_hooked_model_rotates_by_the_tables_of_transformers(kind, checkpoint):
    original, _ = hf_model(checkpoint, kind)
    (rotary,) = (m for m in original.modules() if type(m).__name__.endswith("RotaryEmbedding"))
    model = mechheads.load(str(checkpoint(kind)), backend="hooked")
    with torch.no_grad():
        wanted = rotary(torch.empty(0), torch.arange(shape_of(model).context)[None])
    for block in model.blocks:
        for own, theirs in zip((block.attn.rotary_cos, block.attn.rotary_sin), wanted, strict=True):
            assert torch.equal(own, theirs[0])


@both
@pytest.mark.parametrize("kind", ["gpt2", "llama-gqa"])
def test_redistributed_activations_are_the_same_on_both(kind, checkpoint):
    one, two = (mechheads.load(str(checkpoint(kind)), backend=b) for b in BACKENDS)
    tokens = torch.arange(5, 15)[None]
    found = []
    for model in (one, two):
        with torch.inference_mode(), arm(model, c=0.3, percentile=90.0, seed=5):
            found.append(model(tokens))
    torch.testing.assert_close(*found, atol=2e-5, rtol=1e-4)
    assert not torch.allclose(found[0], one(tokens), atol=1e-3)


def test_weights_that_cannot_be_read_leave_exact_patching(checkpoint):
    model, tokenizer = hf_model(checkpoint, "gpt2")
    bridge = wrap(model, tokenizer)
    prompts = random_pairs(bridge, 3)
    whole = mechheads.score_heads(bridge, prompts, "patch", quiet=True).values

    class Quantized(torch.nn.Module):
        """A layer whose weight is integers, as bitsandbytes stores it."""

        def __init__(self, inner):
            super().__init__()
            self.inner, self.weight = [inner], torch.zeros(4, dtype=torch.uint8)

        def forward(self, x):
            return self.inner[0](x)

    for block in bridge.blocks:
        block.attn.o.set_original_component(Quantized(block.attn.o.original_component))
    assert isinstance(engine_for(bridge), HookedEngine)
    found = mechheads.score_heads(bridge, prompts, "patch", quiet=True).values
    torch.testing.assert_close(found, whole, atol=2e-5, rtol=1e-4)
    with pytest.raises(MechheadsError, match="cannot be read: they are quantized"):
        mechheads.score_heads(bridge, prompts, "direct", quiet=True)


def test_no_hook_is_left_behind(checkpoint):
    model = mechheads.load(str(checkpoint("gemma2")), backend="bridge")
    prompts = random_pairs(model, 3)
    mechheads.score_heads(model, prompts, "patch", quiet=True)
    mechheads.attend(model, prompts[0].clean)
    assert not lens_of(model).has_hooks()
    assert not any(block._forward_hooks or block._forward_pre_hooks for block in model.blocks)


def test_a_foreign_hook_acts_in_every_run(checkpoint):
    model = mechheads.load(str(checkpoint("llama")), backend="bridge")
    prompts = random_pairs(model, 3)
    before = mechheads.score_heads(model, prompts, "patch", quiet=True)
    model.add_hook("blocks.0.attn.hook_z", lambda z, hook: z * 0)
    after = mechheads.score_heads(model, prompts, "patch", quiet=True)
    assert float(after.values[:, 0].abs().max()) < 1e-5
    assert float(before.values[:, 0].abs().max()) > 1e-3


def test_options_of_the_other_backend_are_refused(checkpoint):
    folder = str(checkpoint("gpt2"))
    with pytest.raises(MechheadsError, match="--process needs the backend hooked"):
        mechheads.load(folder, backend="bridge", process=True)
    with pytest.raises(MechheadsError, match="Unknown backend 'hook'"):
        mechheads.load(folder, backend="hook")
    if HAS_HOOKED:
        with pytest.raises(MechheadsError, match="--device-map needs the backend bridge"):
            mechheads.load(folder, device_map="auto")


@both
def test_without_hooked_transformer_the_bridge_is_the_default(monkeypatch):
    from mechheads.models import load

    monkeypatch.setattr(load, "has_hooked_transformer", lambda: False)
    assert load.find_backend(None) == "bridge"
    with pytest.raises(MechheadsError, match="has no HookedTransformer"):
        load.find_backend("hooked")
