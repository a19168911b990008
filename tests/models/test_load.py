import json
import shutil
import subprocess
import sys
from pathlib import Path

import checkpoints
import pytest
import torch
import transformers

from mechheads import MechheadsError, load
from mechheads.models import locate
from mechheads.models.fetchable import FETCHABLE
from mechheads.models.hooks import logits_at_end
from mechheads.models.huggingface import SUPPORTED
from mechheads.models.load import find_backend
from mechheads.prompts import lexicon_of


def tokens_for(model, rows=2, length=40):
    generator = torch.Generator().manual_seed(1)
    return torch.randint(3, model.cfg.d_vocab, (rows, length), generator=generator)


def logits_of_transformers(folder, tokens, **options):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, **options)
    with torch.inference_mode():
        return model(tokens).logits


def copy_of(folder: Path, target: Path) -> Path:
    shutil.copytree(folder, target)
    return target


@pytest.mark.parametrize("kind", checkpoints.ARCHITECTURES)
def test_logits_equal_those_of_transformers(kind, checkpoint):
    folder = checkpoint(kind)
    model = load(str(folder))
    tokens = tokens_for(model)
    with torch.inference_mode():
        torch.testing.assert_close(
            model(tokens), logits_of_transformers(folder, tokens), atol=1e-4, rtol=0
        )


def test_every_supported_architecture_is_compared_above():
    assert {architecture for architecture, _ in checkpoints.ARCHITECTURES.values()} == set(
        SUPPORTED
    )


@pytest.mark.shared
@pytest.mark.parametrize("name", ["tinyllamas-stories15M", "tinyllamas-stories260K"])
def test_logits_of_real_models_equal_those_of_transformers(name, shared):
    folder = shared / "models" / name
    model = load(str(folder))
    tokens = tokens_for(model)
    with torch.inference_mode():
        torch.testing.assert_close(
            model(tokens), logits_of_transformers(folder, tokens), atol=1e-4, rtol=0
        )


@pytest.mark.smollm2
def test_logits_of_smollm2_equal_those_of_transformers_reading_the_published_file():
    folder = locate.cache_folder("smollm2")
    model = load("smollm2")
    tokens = tokens_for(model, length=12)
    gguf = FETCHABLE["smollm2"].gguf
    theirs = logits_of_transformers(folder, tokens, gguf_file=gguf, dtype=torch.float32)
    with torch.inference_mode():
        torch.testing.assert_close(model(tokens), theirs, atol=1e-4, rtol=0)


def test_a_gguf_file_gives_the_logits_of_the_directory_it_was_made_from(tmp_path):
    folder = checkpoints.write(tmp_path / "llama", "llama-gqa")
    file = checkpoints.write_gguf(folder, tmp_path / "model.gguf")
    from_gguf, from_folder = load(str(file)), load(str(folder))
    tokens = tokens_for(from_folder)
    with torch.inference_mode():
        torch.testing.assert_close(from_gguf(tokens), from_folder(tokens), atol=1e-4, rtol=0)
    assert from_gguf.cfg.n_key_value_heads == 2


def architecture(model):
    return model.cfg.original_architecture or model.cfg.architecture


@pytest.mark.parametrize("word", ["llama", "Meta-Llama-3-8B", "gemma-2-2b", "gpt2", "t5-bert"])
def test_a_folder_may_have_any_name(word, checkpoint, tmp_path):
    folder = copy_of(checkpoint("qwen2"), tmp_path / word)
    assert architecture(load(str(folder))) == "Qwen2ForCausalLM"


def test_a_temporary_folder_named_after_a_model_does_not_mislead(checkpoint, tmp_path, monkeypatch):
    (tmp_path / "llama").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "llama"))
    assert architecture(load(str(checkpoint("qwen2")))) == "Qwen2ForCausalLM"


def test_an_embedded_model_loads_by_its_name(checkpoint, tmp_path, monkeypatch):
    copy_of(checkpoint("gpt2"), tmp_path / "mini")
    monkeypatch.setattr(locate, "EMBEDDED", tmp_path)
    assert locate.embedded() == ["mini"]
    assert load("mini").cfg.model_name == "mini"


def test_dtype_is_that_of_every_weight(checkpoint):
    for dtype in ("float64", torch.float64):
        model = load(str(checkpoint("llama-gqa")), dtype=dtype)
        assert {p.dtype for p in model.parameters()} == {torch.float64}


@pytest.mark.hooked
def test_processing_keeps_log_probabilities_and_changes_weights(checkpoint):
    plain = load(str(checkpoint("gpt2")))
    processed = load(str(checkpoint("gpt2")), process=True)
    tokens = tokens_for(plain)
    with torch.inference_mode():
        torch.testing.assert_close(
            processed(tokens).log_softmax(-1), plain(tokens).log_softmax(-1), atol=1e-4, rtol=0
        )
    assert processed.cfg.normalization_type == "LNPre"
    assert processed.W_U.mean(-1).abs().max() < 1e-6 < plain.W_U.mean(-1).abs().max()


@pytest.mark.hooked
def test_editing_the_unembedding_of_a_tied_model_leaves_the_embedding_alone(checkpoint):
    model = load(str(checkpoint("gpt2")))
    before = model.W_E.clone()
    with torch.no_grad():
        model.W_U.zero_()
    assert torch.equal(model.W_E, before)


def test_the_context_is_the_models_own_or_what_was_asked(checkpoint):
    folder = str(checkpoint("llama-gqa"))
    assert load(folder).cfg.n_ctx == 64
    assert load(folder, n_ctx=32).cfg.n_ctx == 32
    with pytest.raises(MechheadsError, match=r"--n-ctx takes 1 to 64 tokens for .*, got 65"):
        load(folder, n_ctx=65)


def test_loading_prints_nothing(checkpoint, capfd):
    load(str(checkpoint("llama-gqa")))
    assert capfd.readouterr() == ("", "")


def test_rows_that_share_a_prompt_give_the_logits_of_rows_run_whole(checkpoint):
    for kind in ("gpt2", "llama-gqa", "neox"):
        model = load(str(checkpoint(kind)))
        prompts = tokens_for(model, rows=3, length=10)
        pair_of = torch.tensor([0, 0, 1, 2, 2, 2])
        tokens = torch.cat([prompts[pair_of], tokens_for(model, rows=6, length=2)], dim=1)
        tokens[:, 0] = 1  # BOS, which TransformerLens would take for padding where it is one
        with torch.inference_mode():
            ours = logits_at_end(model, tokens, 3, pair_of)
            torch.testing.assert_close(ours, model(tokens)[:, -3:], atol=1e-5, rtol=1e-5)


def test_peak_memory_is_below_2_2_times_the_checkpoint(tmp_path):
    checkpoints.write(
        tmp_path / "big", "llama-gqa", hidden_size=768, intermediate_size=3072, num_hidden_layers=6
    )
    program = """
import sys, pathlib
from mechheads import load
import transformers
transformers.AutoModelForCausalLM, transformers.AutoTokenizer, transformers.LlamaForCausalLM
def status(key):
    line = next(l for l in open("/proc/self/status") if l.startswith(key))
    return int(line.split()[1]) * 1024
open("/proc/self/clear_refs", "w").write("5")  # the peak starts again from here
before = status("VmRSS")
load(sys.argv[1])
size = pathlib.Path(sys.argv[1], "model.safetensors").stat().st_size
print((status("VmHWM") - before) / size)
"""
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("peak memory is read from Linux's /proc")
    out = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "big")],
        check=True,
        capture_output=True,
        text=True,
    )
    assert 0.9 < float(out.stdout) < 2.2


def edit_config(folder: Path, **changes) -> None:
    file = folder / "config.json"
    config = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


def drop_weight(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def truncate(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])


WRONG = {
    "no config": (lambda f: (f / "config.json").unlink(), r"has no config\.json"),
    "config not JSON": (lambda f: (f / "config.json").write_text("{"), r"config\.json cannot be"),
    "no architecture": (lambda f: edit_config(f, architectures=None), "names no architecture"),
    "other architecture": (
        lambda f: edit_config(f, architectures=["MambaForCausalLM"], model_type="mamba"),
        "is a MambaForCausalLM, which TransformerLens cannot convert",
    ),
    "truncated": (truncate, r"model\.safetensors is damaged or truncated"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "has no weights"),
    "a pickle": (
        lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"),
        r"only pytorch_model\.bin, a pickle, which we never open",
    ),
    "a missing weight": (drop_weight, r"the weight model\.layers\.1\.mlp\.up_proj\.weight is miss"),
    "other shapes": (
        lambda f: edit_config(f, intermediate_size=52),
        r"the weight \S+ has shape \[\d+, \d+\], but its config expects",
    ),
    "fewer layers": (
        lambda f: edit_config(f, num_hidden_layers=1),
        r"its config does not expect the weight model\.layers\.1\.",
    ),
    "no context": (
        lambda f: edit_config(f, max_position_embeddings=0),
        r"config\.json says max_position_embeddings 0, room for no token",
    ),
    "odd heads": (lambda f: edit_config(f, num_attention_heads=3), r"config\.json cannot be used"),
    "architecture no text": (lambda f: edit_config(f, architectures=[3]), "names no architecture"),
    "index not JSON": (
        lambda f: (f / "model.safetensors.index.json").write_text("{}"),
        r"index\.json is damaged",
    ),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), "has no tokenizer"),
    "an unknown option": (
        lambda f: edit_config(f, rope_parameters={"rope_type": "linear", "factor": 9.0}),
        "conversion changes the logits",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_damaged_directory_gets_an_error_of_one_line(case, checkpoint, tmp_path):
    folder = copy_of(checkpoint("llama-gqa"), tmp_path / "model")
    spoil, message = WRONG[case]
    spoil(folder)
    if case == "an unknown option" and find_backend(None) == "bridge":
        assert load(str(folder))  # a bridge runs transformers' own code, which knows it
        return
    with pytest.raises(MechheadsError, match=message) as caught:
        load(str(folder))
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)


def test_a_lacking_shard_is_named(checkpoint, tmp_path):
    folder = copy_of(checkpoint("llama-gqa"), tmp_path / "model")
    index = {"weight_map": {"lm_head.weight": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(MechheadsError, match="lacks model-00002-of-00002"):
        load(str(folder))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "float8"}, "Unknown dtype 'float8'"),
        ({"device": "cuda:9"}, "Device 'cuda:9' cannot be used"),
        ({"device": "meta"}, "Device 'meta' cannot be used"),
        ({"device": "tpu"}, "Device 'tpu' cannot be used"),
        ({"n_devices": 99}, "got 99"),
        ({"revision": "main"}, "has no revisions"),
    ],
)
def test_a_wrong_option_is_named(options, message, checkpoint):
    with pytest.raises(MechheadsError, match=message):
        load(str(checkpoint("gpt2")), **options)


def test_lexicon_splits_text_as_in_mid_sentence(tiny):
    assert len(lexicon_of(tiny).split(" Mary")) == 1
    assert len(lexicon_of(tiny).split(" 1732")) == 4


@pytest.mark.shared
def test_lexicon_of_a_sentencepiece_tokenizer_adds_no_space_token(tinystories):
    assert len(lexicon_of(tinystories).split(" Mary")) == 1


def test_a_directory_without_a_tokenizer_is_refused(tmp_path):
    folder = tmp_path / "mini"
    shutil.copytree(locate.EMBEDDED / "mini", folder, ignore=shutil.ignore_patterns("tokenizer*"))
    with pytest.raises(MechheadsError, match=r"has no tokenizer.* Put its tokenizer\.json"):
        load(str(folder), quiet=True)
