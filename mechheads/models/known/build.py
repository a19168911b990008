"""Turns a design into a GPT-2 of transformers, so that it is loaded like any other model.

1. Every axis is a dimension of the residual stream; one more balances the others, so that the mean
   is 0, which GPT-2's layer norms subtract.
2. The norms' epsilon is so large that they divide by a constant, which their weight undoes: a layer
   norm changes nothing but the last digits.
3. A head has a dimension of queries and keys for every axis that it looks at, and one of values for
   every axis that it copies from.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from .design import BEGIN, ONE, UNKNOWN, Head, KnownDesign, place, say, token

EPSILON = 1e8


def build(design: KnownDesign) -> tuple[Any, Any]:
    """The model and its tokenizer, as transformers has them."""
    from transformers import GPT2Config, GPT2LMHeadModel

    layers, heads = design.grid
    every = [head for layer in design.layers for head in layer]
    sizes = [len(keys) for head in every for keys in (_keys(head), _sources(head))]
    d_head = max(*sizes, -(-(len(design.axes) + 1) // heads))
    config = GPT2Config(
        vocab_size=len(design.vocabulary),
        n_positions=design.positions,
        n_embd=heads * d_head,
        n_layer=layers,
        n_head=heads,
        n_inner=4,
        layer_norm_epsilon=EPSILON,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=0,
        architectures=["GPT2LMHeadModel"],
    )
    model = GPT2LMHeadModel(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.fill_(EPSILON**0.5 if "ln_" in name and name.endswith("weight") else 0.0)
        axes = {axis: i for i, axis in enumerate(design.axes)}
        parts: Any = model.transformer
        for i, word in enumerate(design.vocabulary):
            _add(parts.wte.weight[i], axes, (token(word), 1.0), (ONE, 1.0))
        for i in range(design.positions):
            _add(parts.wpe.weight[i], axes, (place(i), 1.0))
        for i, word in enumerate(design.words, start=len(design.vocabulary) - len(design.words)):
            model.lm_head.weight[i, axes[say(word)]] = 1.0
        for block, layer in zip(parts.h, design.layers, strict=True):
            for i, head in enumerate(layer):
                _fill(block.attn, axes, head, slice(i * d_head, (i + 1) * d_head))
    return model, tokenizer_for(design.vocabulary)


def tokenizer_for(vocabulary: Sequence[str]) -> Any:
    """A tokenizer of whole words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(vocabulary)}, UNKNOWN))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        bos_token=BEGIN,
        eos_token=BEGIN,
        pad_token=BEGIN,
        unk_token=UNKNOWN,
    )


def _keys(head: Head) -> list[str]:
    return list(dict.fromkeys(key for _, key, _ in head.looks))


def _sources(head: Head) -> list[str]:
    return list(dict.fromkeys(source for source, _, _ in head.copies))


def _fill(attention: Any, axes: dict[str, int], head: Head, own: slice) -> None:
    """Write a head's weights; `own` are its columns of queries, keys and values."""
    width = attention.c_proj.weight.shape[0]
    queries, keys, values = (
        attention.c_attn.weight[:, own.start + i * width : own.stop + i * width] for i in range(3)
    )
    scale = (own.stop - own.start) ** 0.5  # by which attention divides the scores
    column = {key: i for i, key in enumerate(_keys(head))}
    for query, key, score in head.looks:
        queries[axes[query], column[key]] = score * scale
        keys[axes[key], column[key]] = 1.0
    column = {source: i for i, source in enumerate(_sources(head))}
    for source, to, weight in head.copies:
        values[axes[source], column[source]] = 1.0
        _add(attention.c_proj.weight[own][column[source]], axes, (to, weight))


def _add(row: Float[Tensor, " d_model"], axes: dict[str, int], *written: tuple[str, float]) -> None:
    """Add weights on axes to a row, and what balances them."""
    for axis, weight in written:
        row[axes[axis]] += weight
        row[len(axes)] -= weight
