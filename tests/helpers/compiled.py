"""Compiled models whose true heads are known, read from the arrays in ../shared/oracles."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tasks
from mechheads.models.huggingface import quiet_libraries
from mechheads.prompts import Prompts

CASES = (12, 21, 98)


def load_compiled(folder: Path, case: int) -> tuple[Any, Prompts]:
    """The model as a HookedTransformer, and pairs of its examples whose last answers differ."""
    from transformer_lens import HookedTransformer, HookedTransformerConfig

    about = json.loads((folder / f"tracr_{case}.json").read_text())
    arrays = {k: torch.tensor(v).float() for k, v in np.load(folder / f"tracr_{case}.npz").items()}
    words, places = arrays["token_embed|embeddings"], arrays["pos_embed|embeddings"]
    heads, d_head = about["n_heads"], about["d_head"]
    config = HookedTransformerConfig(
        model_name=f"tracr_{case}",
        n_layers=about["n_layers"],
        n_heads=heads,
        d_head=d_head,
        d_model=words.shape[1],
        d_mlp=about["d_mlp"],
        d_vocab=len(words),
        n_ctx=len(places),
        act_fn="relu",
        normalization_type=None,
        attention_dir="causal" if about["causal"] else "bidirectional",
        default_prepend_bos=False,
        device="cpu",
    )
    with quiet_libraries():
        model = HookedTransformer(config)
    state = {"embed.W_E": words, "pos_embed.W_pos": places, "unembed.W_U": _reader(about, words)}
    state["unembed.b_U"] = torch.zeros(len(words))
    for layer in range(about["n_layers"]):
        own, place = f"blocks.{layer}.", f"transformer/layer_{layer}/"
        for letter, name in (("Q", "query"), ("K", "key"), ("V", "value")):
            weight = arrays[f"{place}attn/{name}|w"].unflatten(1, (heads, d_head))
            state[f"{own}attn.W_{letter}"] = weight.movedim(1, 0)
            state[f"{own}attn.b_{letter}"] = arrays[f"{place}attn/{name}|b"].view(heads, d_head)
        weight = arrays[f"{place}attn/linear|w"].unflatten(0, (heads, d_head))
        state |= {f"{own}attn.W_O": weight, f"{own}attn.b_O": arrays[f"{place}attn/linear|b"]}
        for name, number in (("in", 1), ("out", 2)):
            state[f"{own}mlp.W_{name}"] = arrays[f"{place}mlp/linear_{number}|w"]
            state[f"{own}mlp.b_{name}"] = arrays[f"{place}mlp/linear_{number}|b"]
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected
    assert all(name.endswith((".mask", ".IGNORE")) for name in missing)
    return model.eval().requires_grad_(False), _prompts(about)


def _reader(about: Any, words: torch.Tensor) -> torch.Tensor:
    """The unembedding: the axes of the answers. There are fewer answers than tokens."""
    stem = about["label"].rpartition("_")[0]
    axes = [label.rpartition(":") for label in about["labels"]]
    read = torch.zeros(words.shape[1], len(words))
    for answer, i in about["out"].items():
        (axis,) = [
            j
            for j, (name, _, value) in enumerate(axes)
            if name.rpartition("_")[0] == stem and value == answer
        ]
        read[axis, i] = 1.0
    return read


def _prompts(about: Any, n: int = 32) -> Prompts:
    examples = about["examples"]
    pairs = []
    for i, (text, answers) in enumerate(examples[:n]):
        others = examples[i + 1 :] + examples[:i]
        other = next(entry for entry in others if entry[1][-1] != answers[-1])
        pairs.append((text, other[0], answers[-1], other[1][-1]))
    begin = [about["inp"]["BOS"]]
    rows = [[begin + [about["inp"][token] for token in p[i]] for p in pairs] for i in (0, 1)]
    right, wrong = ([about["out"][p[i]] for p in pairs] for i in (2, 3))
    return tasks.from_tokens(rows[0], rows[1], right, wrong, name=f"tracr {about['case']}")
