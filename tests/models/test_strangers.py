"""A stranger's model directory: its code is not run, and no memory is taken for what it lacks."""

import builtins
import contextlib
import json
import shutil
import time
from pathlib import Path

import checkpoints
import gguf
import pytest
import torch
from safetensors.torch import save_file

from mechheads.errors import MechheadsError
from mechheads.models import edge_gates
from mechheads.models.load import load
from mechheads.models.locate import EMBEDDED

EVIL = "import pathlib\npathlib.Path(__file__).with_name('executed').touch()\nclass C: ...\n"


@pytest.fixture
def folder(checkpoint, tmp_path) -> Path:
    """A tiny GPT-2 with a module of its own."""
    place = tmp_path / "model"
    shutil.copytree(checkpoint("gpt2"), place)
    (place / "evil.py").write_text(EVIL)
    return place


def edit(file: Path, **changes: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize(
    ("file", "changes"),
    [
        ("config.json", {"model_type": "evil", "auto_map": {"AutoConfig": "evil.C"}}),
        ("config.json", {"auto_map": {"AutoModelForCausalLM": "evil.C"}}),
        (
            "tokenizer_config.json",
            {"tokenizer_class": "C", "auto_map": {"AutoTokenizer": ["evil.C", "evil.C"]}},
        ),
    ],
)
def test_its_code_is_not_run_and_nobody_is_asked(file, changes, folder, monkeypatch):
    asked = []
    monkeypatch.setattr(builtins, "input", lambda *_: asked.append(1) or "y")
    edit(folder / file, **changes)
    with contextlib.suppress(MechheadsError):
        load(str(folder))
    assert not asked
    assert not list(folder.rglob("executed"))


def test_an_adapter_of_another_model_is_refused(folder):
    adapter = {"peft_type": "LORA", "base_model_name_or_path": str(EMBEDDED / "mini"), "r": 1}
    (folder / "adapter_config.json").write_text(json.dumps(adapter))
    save_file({}, folder / "adapter_model.safetensors")
    with pytest.raises(MechheadsError, match=r"has an adapter .* that may be elsewhere\. Merge it"):
        load(str(folder))


@pytest.mark.parametrize("name", ["_attn_implementation", "experts_implementation"])
def test_a_program_of_a_hub_is_refused(name, folder):
    edit(folder / "config.json", **{name: "someone/kernels"})
    with pytest.raises(MechheadsError, match="names a program of a hub"):
        load(str(folder))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_layer": 40, "n_embd": 4096}, "describes 8,[0-9,]+ weights, but its files have only"),
        ({"n_inner": 10**6}, "weights, but its files have only"),
        ({"vocab_size": 10**8}, "weights, but its files have only"),
        ({"n_positions": 10**8}, "weights, but its files have only"),
        ({"num_labels": 10**8}, "says num_labels 100,000,000; at most 100,000"),
    ],
    ids=str,
)
def test_a_config_of_more_than_the_files_hold_is_refused_before_it_is_built(
    changes, message, folder
):
    edit(folder / "config.json", **changes)
    start = time.process_time()
    with pytest.raises(MechheadsError, match=message):
        load(str(folder))
    assert time.process_time() - start < 10


def test_so_is_a_gguf_file(tmp_path, monkeypatch):
    folder = checkpoints.write(tmp_path / "llama", "llama-gqa")
    count = gguf.GGUFWriter.add_block_count
    for blocks, message in ((1_000_000, "at most 1,000"), (900, "weights, but its files have")):
        with monkeypatch.context() as patched:
            patched.setattr(
                gguf.GGUFWriter, "add_block_count", lambda own, _, blocks=blocks: count(own, blocks)
            )
            file = checkpoints.write_gguf(folder, tmp_path / f"{blocks}.gguf")
        with pytest.raises(MechheadsError, match=message):
            load(str(file))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_gates_that_are_not_numbers_are_refused(value, tmp_path):
    folder = tmp_path / "sparse"
    shutil.copytree(EMBEDDED / "mini-sparse", folder)
    bias = torch.zeros(4, 8)
    bias[1, 2] = value
    save_file({"bias": bias}, folder / edge_gates.BIAS_FILE)
    with pytest.raises(MechheadsError, match="gates that are not finite numbers"):
        load(str(folder))
