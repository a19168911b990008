"""Kinds of heads on a model whose heads are built by hand."""

import pytest
import torch

from mechheads.benchmarks.timings import tokenizer_of_words
from mechheads.models.untrained import random_model
from mechheads.observe.head_types import head_types

VOCAB, CONTEXT = 40, 64


@pytest.fixture(scope="module")
def planted():
    """Tokens and positions are one-hot; what each head of the first layer looks for is known.

    L0H0 looks one position back, L0H1 for its own token, L0H2 nowhere in particular. L1H0 looks for
    its own token among what L0H0 wrote, the token before each: that is induction.
    """
    width = 2 * VOCAB + CONTEXT
    model = random_model(
        tokenizer_of_words(VOCAB),
        n_layers=2,
        n_heads=3,
        d_model=width,
        d_head=width,
        d_vocab=VOCAB,
        n_ctx=CONTEXT,
        attn_only=True,
        normalization_type=None,
        attn_scale=1.0,
    )
    words, before = torch.arange(VOCAB), torch.arange(VOCAB) + VOCAB + CONTEXT
    places = torch.arange(CONTEXT) + VOCAB
    for parameter in model.parameters():
        parameter.data.zero_()
    model.W_E.data[words, words] = 1.0
    model.pos_embed.W_pos.data[torch.arange(CONTEXT), places] = 1.0
    first, second = model.blocks[0].attn, model.blocks[1].attn
    first.W_Q.data[0, places[1:], places[:-1]] = 30.0
    first.W_K.data[0, places, places] = 1.0
    first.W_V.data[0, words, before] = 1.0
    first.W_O.data[0, before, before] = 1.0
    first.W_Q.data[1, words, words] = 30.0
    first.W_K.data[1, words, words] = 1.0
    second.W_Q.data[0, words, words] = 30.0
    second.W_K.data[0, before, words] = 1.0
    return model


@pytest.mark.hooked
def test_planted_heads_are_recognised_and_idle_ones_are_not(planted):
    found = head_types(planted)
    assert found.label(0, 0) == "previous token"
    assert found.label(0, 1) in ("duplicate token", "")
    assert found.scores["duplicate token"][0, 1] > 0.3
    assert found.label(1, 0) == "induction"
    for idle in ((0, 2), (1, 1), (1, 2)):
        assert found.label(*idle) == ""
    assert found.scores["previous token"][0, 0] > 0.99
    assert set(found.frame().columns) >= {"layer", "head", "induction"}


@pytest.mark.hooked
def test_the_same_seed_gives_the_same_scores(planted):
    one, two, other = (head_types(planted, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(one.scores["induction"], two.scores["induction"])
    assert not torch.equal(one.scores["induction"], other.scores["induction"])
