"""Any model in memory: what is taken as it is, and what is refused."""

from typing import Any

import pytest
import torch
import transformers
from pairs import random_pairs

import circuits
import mechheads
import tasks
from mechheads import METHODS, MechheadsError
from mechheads.models import wrap as wrapping
from mechheads.models.load import find_backend
from mechheads.models.model import shape_of
from mechheads.models.wrap import lens_of, wrap
from mechheads.scoring.gate_fitting import FitSettings

hooked = pytest.mark.skipif(
    find_backend(None) != "hooked", reason="TransformerLens 4 has no HookedTransformer"
)


QUICK = [name for name in METHODS if name != "gating"]  # `fit_gates` stands for it


def hf_model(checkpoint, kind="llama-gqa", **options):
    folder = checkpoint(kind)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, **options)
    return model.eval(), transformers.AutoTokenizer.from_pretrained(folder)


def bridge(model, tokenizer):
    """A bridge as a user of TransformerLens makes it."""
    from transformer_lens.model_bridge import TransformerBridge

    return TransformerBridge.boot_transformers(
        "bridge", hf_model=model, tokenizer=tokenizer, device="cpu"
    ).eval()


def in_memory(checkpoint, kind):
    """The same Llama as a model of each kind in memory, none of them wrapped."""
    folder = checkpoint("llama-gqa")
    if kind == "transformers":
        return hf_model(checkpoint)[0]
    if kind == "HookedTransformer":
        return mechheads.load(str(folder), backend="hooked")
    return bridge(*hf_model(checkpoint, attn_implementation="eager"))


@pytest.mark.parametrize(
    "kind",
    [pytest.param("HookedTransformer", marks=hooked), "TransformerBridge", "transformers"],
)
@pytest.mark.filterwarnings("ignore")  # TransformerLens's own
def test_every_public_function_takes_any_model_in_memory(kind, checkpoint):
    def made():
        return in_memory(checkpoint, kind)  # anew: no earlier call has wrapped it

    loaded = mechheads.load(str(checkpoint("llama-gqa")))
    pairs = random_pairs(loaded, 4, (9,) * 8)
    text, few = pairs[0].clean, FitSettings(seeds=1, updates=2, batch=2)
    functions = [
        lambda m: [mechheads.score_heads(m, pairs, x, quiet=True).values for x in QUICK],
        lambda m: mechheads.measure_subsets(m, pairs, torch.ones(1, *shape_of(m).grid).tril()),
        lambda m: mechheads.patch_positions(m, pairs, quiet=True).values,
        lambda m: mechheads.path_patch(m, pairs, to="L1H0", quiet=True).values,
        lambda m: [*mechheads.edge_attribution(m, pairs, quiet=True).values.values()],
        lambda m: numbers(mechheads.ablate(m, pairs, heads="L0H1", quiet=True)),
        lambda m: numbers(mechheads.evaluate(m, pairs, quiet=True)),
        lambda m: mechheads.fit_gates(m, pairs, few, quiet=True).effects,
        lambda m: mechheads.attend(m, text).weights,
        lambda m: numbers(mechheads.head_types(m)),
        lambda m: circuits.discover(m, pairs, method="attribution", draws=2).curve.values,
    ]
    for function in functions:
        torch.testing.assert_close(function(made()), function(loaded), atol=2e-5, rtol=1e-4)
    assert mechheads.generate(made(), text, max_tokens=3, quiet=True) == mechheads.generate(
        loaded, text, max_tokens=3, quiet=True
    )
    assert tasks.make("ioi", made(), n=4) == tasks.make("ioi", loaded, n=4)


def numbers(result):
    return torch.from_numpy(result.frame().select_dtypes("number").to_numpy(float))


def test_transformers_can_still_use_a_wrapped_model(checkpoint):
    model, tokenizer = hf_model(checkpoint)
    tokens = torch.tensor([[3, 4, 5]])
    with torch.inference_mode():
        before = model(tokens).logits
        wrap(model, tokenizer)
        torch.testing.assert_close(model(tokens).logits, before)


def test_wrapping_twice_gives_the_same_bridge(checkpoint):
    model, tokenizer = hf_model(checkpoint, "gpt2")
    bridge = wrap(model, tokenizer)
    assert wrap(model) is bridge
    assert wrap(bridge) is bridge
    assert bridge.tokenizer is tokenizer


def test_a_model_without_a_tokenizer_takes_token_ids(checkpoint):
    model, _ = hf_model(checkpoint, "gpt2")
    model.config._name_or_path = ""
    prompts = tasks.from_tokens([[5, 6, 7]] * 4, [[5, 8, 7]] * 4, [9] * 4, [10] * 4)
    assert mechheads.score_heads(model, prompts, "patch", quiet=True).values.abs().max() > 0
    with pytest.raises(MechheadsError, match="has no tokenizer"):
        mechheads.attend(model, "Mary")


@pytest.mark.filterwarnings("ignore")  # TransformerLens's own
def test_what_is_no_causal_language_model_is_refused(checkpoint):
    words = hf_model(checkpoint)[1]
    small: dict[str, Any] = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    bert = transformers.BertConfig(**small, intermediate_size=8, vocab_size=60)
    t5 = transformers.T5Config(d_model=8, d_ff=8, num_layers=1, num_heads=2, d_kv=4, vocab_size=60)
    llama = transformers.LlamaConfig(**small, intermediate_size=8, vocab_size=60)
    ssm = transformers.MambaConfig(hidden_size=8, num_hidden_layers=1, vocab_size=60)
    with torch.device("meta"):
        meta = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_embd=8, n_layer=1, n_head=2))
    for model, message in (
        (transformers.BertForMaskedLM(bert), "BertForMaskedLM does not predict the next token"),
        (transformers.BertLMHeadModel(bert), "BertLMHeadModel reads text in both directions"),
        (bridge(transformers.BertForMaskedLM(bert), words), "bridge reads text in both directions"),
        (transformers.T5ForConditionalGeneration(t5), "is an encoder-decoder model"),
        (bridge(transformers.T5ForConditionalGeneration(t5), words), "a bridge without blocks"),
        (transformers.MambaForCausalLM(ssm), "Layer 0 of MambaForCausalLM has no attention heads"),
        (meta, "meta device"),
        (
            bridge(transformers.LlamaForCausalLM(llama), words).to("meta"),
            "bridge are on the meta device",
        ),
        ("gpt2", r"Use mechheads\.load\('gpt2'\)"),
        (3, "Expected a model, got int"),
    ):
        with pytest.raises(MechheadsError, match=message) as caught:
            wrap(model)
        assert "\n" not in str(caught.value)


def test_a_bridge_whose_blocks_do_not_give_its_logits_is_refused(checkpoint, monkeypatch):
    model, tokenizer = hf_model(checkpoint, "gpt2")
    bridge = wrapping.boot(model, tokenizer)
    bridge.unembed.register_forward_hook(lambda module, args, output: output + 1)
    bridge.ln_final.register_forward_hook(lambda module, args, output: output * 2)
    with pytest.raises(MechheadsError, match="cannot be run block by block"):
        lens_of(bridge)
