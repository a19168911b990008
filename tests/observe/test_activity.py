"""Attention on the first token and what heads write: by hand, and by TransformerLens's hooks."""

import pytest
import torch
from pairs import random_pairs

import mechheads
import tasks
from mechheads.benchmarks.timings import tokenizer_of_words
from mechheads.models.untrained import random_model
from mechheads.observe.activity import head_activity
from mechheads.observe.edges import count_edges
from mechheads.prompts import Pair, Prompts

VOCAB, CONTEXT = 40, 32


@pytest.fixture(scope="module")
def prompts():
    texts = ("w1 w2 w3 w4", "w5 w6 w7 w8 w9 w10")
    return Prompts("words", "logit_diff", tuple(Pair(t, t, ("w1",), ("w2",)) for t in texts))


@pytest.fixture(scope="module")
def planted():
    """L0H0 attends evenly, L0H1 to the first token alone; both write 3 of what they see of it.

    L0H2 attends evenly and writes nothing. Every residual vector has length sqrt(2): a token and
    a position, both one-hot.
    """
    width = VOCAB + CONTEXT
    model = random_model(
        tokenizer_of_words(VOCAB),
        n_layers=1,
        n_heads=3,
        d_model=width,
        d_head=width,
        d_vocab=VOCAB,
        n_ctx=CONTEXT,
        attn_only=True,
        normalization_type=None,
        attn_scale=1.0,
    )
    for parameter in model.parameters():
        parameter.data.zero_()
    model.W_E.data[torch.arange(VOCAB), torch.arange(VOCAB)] = 1.0
    places = torch.arange(CONTEXT) + VOCAB
    model.pos_embed.W_pos.data[torch.arange(CONTEXT), places] = 1.0
    attention = model.blocks[0].attn
    attention.W_Q.data[1, places, 0] = 50.0
    attention.W_K.data[1, VOCAB, 0] = 1.0
    for head in (0, 1):
        attention.W_V.data[head, VOCAB, 5] = 1.0
        attention.W_O.data[head, 5, 7] = 3.0
    return model


@pytest.mark.hooked
def test_planted_heads_have_the_weights_and_lengths_worked_out_by_hand(planted, prompts):
    found = head_activity(planted, prompts, quiet=True)
    lengths = [len(planted.to_tokens(pair.clean)[0]) for pair in prompts.pairs]
    shares = [1 / (query + 1) for n in lengths for query in range(1, n)]
    even = sum(shares) / len(shares)
    assert found.first_token[0].tolist() == pytest.approx([even, 1.0, even], abs=1e-5)
    assert found.written[0].tolist() == pytest.approx(
        [3 * even / 2**0.5, 3 / 2**0.5, 0.0], abs=1e-5
    )
    assert found.headline == {"heads": 3, "sinks": 1, "idle": 1}


@pytest.mark.hooked
def test_both_numbers_are_those_of_the_hooks(tiny):
    prompts = random_pairs(tiny, 3, (7, 9, 9))
    first, written = torch.zeros(2, 0, 2, 4)
    for pair in prompts.pairs:
        _, cache = tiny.run_with_cache(tiny.to_tokens(pair.clean))
        weights = torch.stack([cache["pattern", layer][0] for layer in range(2)])
        sizes = [
            torch.einsum("phd,hdm->phm", cache["z", layer][0], tiny.blocks[layer].attn.W_O).norm(
                dim=-1
            )
            / cache["resid_pre", layer][0].norm(dim=-1, keepdim=True)
            for layer in range(2)
        ]
        first = torch.cat([first, weights[:, :, 1:, 0].permute(2, 0, 1)])
        written = torch.cat([written, torch.stack(sizes)[:, 1:].transpose(0, 1)])
    found = head_activity(tiny, prompts, quiet=True)
    torch.testing.assert_close(found.first_token, first.mean(0), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(found.written, written.mean(0), rtol=1e-4, atol=1e-6)


def test_heads_whose_edges_are_all_closed_are_idle():
    sparse = mechheads.load("mini-sparse")
    prompts = tasks.make("ioi", sparse, n=8)
    found = head_activity(sparse, prompts, quiet=True)
    closed = count_edges(sparse, prompts, quiet=True).used.sum(0) == 0
    assert closed.any()
    assert (found.written[closed] == 0).all()
    assert (found.written[~closed] > 0).all()
