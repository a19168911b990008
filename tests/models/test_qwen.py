"""The fetched model of 1.5 billion parameters: one test loads it, 7 GB of memory."""

from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

import tasks
from mechheads import evaluate, load
from mechheads.engine.direct import DirectEngine
from mechheads.engine.select import engine_for, gradient_budget
from mechheads.models.fetchable import cache_folder
from mechheads.models.model import encoder_of

NAME = "qwen2.5-coder-1.5b"
# Ids of the published tokenizer of Qwen2.5.
PUBLISHED = {
    "Hello world": [9707, 1879],
    "0123456789": list(range(15, 25)),
    "def": [750],
    "<|im_start|>": [151644],
    "": [],
}


@pytest.mark.qwen
def test_the_tokenizer_made_from_gguf_is_that_of_qwen():
    tokenizer = AutoTokenizer.from_pretrained(Path(cache_folder(NAME)), local_files_only=True)
    for text, ids in PUBLISHED.items():
        assert tokenizer.encode(text) == ids  # also: no BOS
    year = tokenizer.tokenize("in 1732")
    assert year == ["in", "Ġ", "1", "7", "3", "2"]
    assert tokenizer.encode("e\u0301") == tokenizer.encode("é")  # composed, as Qwen does
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")


@pytest.mark.qwen
def test_the_model_of_1_5_billion_parameters_does_ioi():
    model = load(NAME, quiet=True)
    assert (model.cfg.n_layers, model.cfg.n_heads, model.cfg.n_key_value_heads) == (28, 12, 2)
    assert not encoder_of(model).prepend_bos
    assert isinstance(engine_for(model), DirectEngine)
    assert 100 < gradient_budget(model) < 1000
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    prompts = tasks.make("ioi", model, n=8)
    assert evaluate(model, prompts, quiet=True).clean["accuracy"].mean() == 1.0
