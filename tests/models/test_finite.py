"""Logits that are not numbers are noticed, in every dtype, and the message is true."""

import shutil

import pytest
import torch
from pairs import random_pairs
from safetensors.torch import load_file, save_file

from mechheads.engine.generate import generate
from mechheads.errors import MechheadsError
from mechheads.models.load import load
from mechheads.models.locate import EMBEDDED
from mechheads.observe.evaluation import evaluate
from mechheads.prompts import Pair, Prompts


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_a_model_with_nan_weights_is_not_loaded(dtype, tmp_path):
    folder = tmp_path / "broken"
    shutil.copytree(EMBEDDED / "mini", folder)
    file = next(folder.glob("*.safetensors"))
    tensors = load_file(file)
    name = next(name for name, tensor in tensors.items() if name.endswith("wte.weight"))
    tensors[name][7] = torch.nan
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(MechheadsError, match=f"NaN or infinite in (float64|{dtype}): its weights"):
        load(str(folder), dtype=dtype)


def test_nan_that_comes_later_is_noticed_too(tiny):
    prompts = random_pairs(tiny, 4)
    weight = tiny.W_U.clone()
    try:
        with torch.no_grad():
            tiny.W_U[:, 3] = torch.nan
        with pytest.raises(MechheadsError, match="NaN or infinite"):
            evaluate(tiny, prompts, quiet=True)
        with pytest.raises(MechheadsError, match="NaN or infinite"):
            generate(tiny, [prompts.pairs[0].clean], max_tokens=2, quiet=True)
    finally:
        with torch.no_grad():
            tiny.W_U.copy_(weight)


def test_a_model_of_zeros_is_not_always_right(checkpoint):
    model = load(str(checkpoint("gpt2")))
    with torch.no_grad():
        model.W_U.zero_()
        model.b_U.zero_()
    names = ["Mary", "John", "Tom", "Anna"]
    pairs = tuple(Pair(f"The {a} and", "The Paul and", (f" {a}",), (" Paul",)) for a in names)
    found = evaluate(model, Prompts("t", "logit_diff", pairs), quiet=True)
    assert found.clean["top1"].sum() == 0
    assert found.clean["accuracy"].sum() == 0
