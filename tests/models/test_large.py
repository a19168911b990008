"""What large models need: layers in several places, quantized weights, half precision."""

import accelerate
import checkpoints
import pytest
import torch
import transformers
from pairs import random_pairs

import mechheads
from mechheads import MechheadsError
from mechheads.engine.direct import DirectEngine
from mechheads.engine.hooked import HookedEngine
from mechheads.engine.select import engine_for
from mechheads.models import load as loading
from mechheads.models.wrap import lens_of, wrap

BITS = {"8bit": torch.int8, "4bit": torch.uint8}


def effects(model, method="patch", **options):
    return mechheads.score_heads(
        model, random_pairs(model, 3), method, quiet=True, **options
    ).values.float()


def read(folder, **options):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, **options).eval()
    return model, transformers.AutoTokenizer.from_pretrained(folder)


def falls_back(model, whole):
    """Exact effects from the model's own blocks, and errors where the weights are needed."""
    assert isinstance(engine_for(model), HookedEngine)
    torch.testing.assert_close(effects(model), effects(whole), atol=2e-5, rtol=1e-4)
    ours, theirs = (effects(m, "attribution") for m in (model, whole))
    torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-4)
    with pytest.raises(MechheadsError, match="cannot be read: they are quantized, have an adapter"):
        effects(model, "direct")


@pytest.mark.parametrize("kind", ["llama-gqa", "qwen3", "phi"])
def test_a_layer_whose_weights_come_and_go_gives_the_same(kind, checkpoint):
    whole = mechheads.load(str(checkpoint(kind)), backend="bridge")
    model, tokenizer = read(checkpoint(kind))
    accelerate.cpu_offload(model.model.layers[1], execution_device=torch.device("cpu"))
    assert {weight.device.type for weight in model.parameters()} == {"cpu", "meta"}
    falls_back(wrap(model, tokenizer), whole)


def test_a_layer_on_disk_gives_the_same(checkpoint, tmp_path):
    folder = checkpoint("llama-gqa")
    here = ("model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head", "model.layers.0")
    places = dict.fromkeys(here, "cpu") | {"model.layers.1": "disk"}
    model, tokenizer = read(folder, device_map=places, offload_folder=str(tmp_path))
    falls_back(wrap(model, tokenizer), mechheads.load(str(folder), backend="bridge"))
    assert model.hf_device_map == places


def test_a_device_map_of_one_device_keeps_the_direct_engine(checkpoint):
    folder = str(checkpoint("llama-gqa"))
    model = mechheads.load(folder, backend="bridge", device_map="auto")
    assert isinstance(engine_for(model), DirectEngine)
    whole = mechheads.load(folder, backend="bridge")
    torch.testing.assert_close(effects(model), effects(whole), atol=0, rtol=0)


@pytest.mark.parametrize("kind", ["gpt2", "llama-gqa", "gemma2"])
def test_bfloat16_is_near_float32(kind, checkpoint):
    folder = str(checkpoint(kind))
    model = mechheads.load(folder, backend="bridge", dtype="bfloat16")
    assert next(model.parameters()).dtype == torch.bfloat16
    half, full = effects(model), effects(mechheads.load(folder, backend="bridge"))
    assert (half - full).abs().max() < 0.05 * full.abs().max() + 0.05


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """The folder of a model that is as wide as a block of 4-bit weights."""
    pytest.importorskip("bitsandbytes")
    size = {"hidden_size": 64, "intermediate_size": 128}
    return checkpoints.write(tmp_path_factory.mktemp("wide"), "llama-gqa", **size)


@pytest.mark.filterwarnings("default")  # bitsandbytes warns of its own habits
@pytest.mark.parametrize("bits", BITS)
def test_quantized_weights_are_run_by_their_own_blocks(bits, wide):
    folder = str(wide)
    model = mechheads.load(folder, backend="bridge", quantize=bits)
    weight = model.original_model.model.layers[0].self_attn.o_proj.original_component.weight
    assert weight.dtype == BITS[bits]
    assert isinstance(engine_for(model), HookedEngine)
    found, full = effects(model), effects(mechheads.load(folder, backend="bridge"))
    assert torch.corrcoef(torch.stack([found.flatten(), full.flatten()]))[0, 1] > 0.8
    with pytest.raises(MechheadsError, match="cannot be read: they are quantized"):
        effects(model, "direct")
    if bits == "4bit":  # bitsandbytes computes these without gradients on a CPU
        with pytest.raises(MechheadsError, match="passes no gradients back"):
            effects(model, "attribution")


@pytest.mark.filterwarnings("default")
def test_a_model_that_was_saved_quantized_needs_no_flag(wide, tmp_path):
    model = mechheads.load(str(wide), backend="bridge", quantize="8bit")
    expected = effects(model)
    hf_model, tokenizer = read(
        wide,
        quantization_config=transformers.BitsAndBytesConfig(load_in_8bit=True),
    )
    hf_model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    again = mechheads.load(str(tmp_path), backend="bridge")
    torch.testing.assert_close(effects(again), expected, atol=1e-3, rtol=1e-3)
    if loading.find_backend(None) == "hooked":
        with pytest.raises(MechheadsError, match="has quantized weights, which need the backend"):
            mechheads.load(str(tmp_path))


def test_a_model_that_falls_back_says_so(checkpoint, capfd):
    from mechheads.progress import forced

    model, tokenizer = read(checkpoint("llama-gqa"))
    accelerate.cpu_offload(model.model.layers[1], execution_device=torch.device("cpu"))
    with forced():
        lens_of(model, tokenizer)
        lens_of(model, tokenizer)
    assert capfd.readouterr().err.count("weights that cannot be read") == 1


def test_quantizing_without_bitsandbytes_says_what_to_install(checkpoint, monkeypatch):
    monkeypatch.setattr(loading, "find_spec", lambda name: None)
    with pytest.raises(MechheadsError, match=r"pip install 'mechheads\[large\]'"):
        mechheads.load(str(checkpoint("gpt2")), backend="bridge", quantize="8bit")
    with pytest.raises(MechheadsError, match="Unknown value for --quantize '2bit'"):
        mechheads.load(str(checkpoint("gpt2")), backend="bridge", quantize="2bit")
