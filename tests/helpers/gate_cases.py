"""A model whose heads have known roles, prompts for it, and gates made by hand."""

from functools import cache
from pathlib import Path
from typing import Any

import torch

from mechheads.models.load import load
from mechheads.prompts import Pair, Prompts
from mechheads.scoring.gate_fitting import FitSettings, fit_gates
from mechheads.scoring.gate_roles import Gates

HELPS, HARMS = (0, 1), (1, 2)


def write_words(folder: Path, writers: dict[tuple[int, int], tuple[str, float]]) -> Any:
    """The GPT-2 in `folder`, in which these heads always write their word, so strongly.

    No other head and no MLP writes anything.
    """
    model: Any = load(str(folder))
    with torch.no_grad():
        for block in model.blocks:
            block.mlp.W_out.zero_()
            block.mlp.b_out.zero_()
            block.attn.W_O.zero_()
            block.attn.b_O.zero_()
        for (layer, head), (text, size) in writers.items():
            word = model.W_U[:, model.tokenizer.encode(text)[0]] - model.W_U.mean(1)
            attention = model.blocks[layer].attn
            attention.W_V[head].zero_()
            attention.b_V[head].zero_()
            attention.b_V[head, 0] = 1.0
            attention.W_O[head, 0] = size * word / word.norm()
    return model


@cache
def planted_roles(folder: Path) -> Any:
    """L0H1 always writes the token " Mary", L1H2 takes it away, no other head writes."""
    return write_words(folder, {HELPS: (" Mary", 4.0), HARMS: (" Mary", -3.0)})


@cache
def marys() -> Prompts:
    """Prompts of two lengths that all have the same answer."""
    names = ("Tom", "Anna", "James", "John")
    pairs = [
        Pair(f"Then {a} and {b} gave", f"Then {b} and {a} gave", (" Mary",), (" Tom",))
        for a in names
        for b in names
        if a != b
    ]
    pairs += [
        Pair(f"When {a} met {b} they went to", f"When {b} met {a} they went to", (" Mary",), ())
        for a, b in (("Tom", "Anna"), ("John", "Anna"))
    ]
    return Prompts("marys", "logprob", tuple(pairs))


@cache
def planted_gates(folder: Path) -> Gates:
    """Gates of the planted model."""
    settings = FitSettings(seeds=4, updates=120, batch=4)
    return fit_gates(planted_roles(folder), marys(), settings, quiet=True)


def gates_of(plus: torch.Tensor, minus: torch.Tensor) -> Gates:
    """Gates that were pulled open and shut so far; those of the free fit are the open ones."""
    trace, ends = torch.zeros(3, len(plus), 5), torch.zeros(3, len(plus))
    return Gates("t", "m", plus, plus, minus, trace, trace, ends, ends, 0.0, {"batch": 8})
