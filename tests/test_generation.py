"""Greedy answers with masked heads: cached against uncached, against TransformerLens."""

import pytest
import torch

from mechheads import models
from mechheads.engine import Plain, engine_for
from mechheads.errors import MechheadsError
from mechheads.fast import Fast
from mechheads.generation import answer

PROMPTS = (
    "When Mary and John went to the store,",
    "When Tom and Anna went to the store,",
    "Then James gave",
    "When Anna and Tom",
)


def masks(model: models.Model) -> torch.Tensor:
    torch.manual_seed(0)
    shape = (model.cfg.n_layers, model.cfg.n_heads)
    return torch.stack([torch.ones(shape), torch.zeros(shape), torch.rand(shape).round()])


@pytest.mark.parametrize("kind", ["gpt2", "llama-gqa", "neox", "gemma2"])
@pytest.mark.parametrize("positions", ["last", "all"])
def test_cached_answers_are_uncached_ones(kind, positions, checkpoint):
    model = models.load(str(checkpoint(kind)))
    keep = masks(model)
    common = {"positions": positions, "max_tokens": 6, "stop": (), "quiet": True}
    fast = answer(model, PROMPTS, keep, **common)
    plain = answer(model, PROMPTS, keep, engine=Plain(model), **common)
    assert fast == plain
    few = answer(model, PROMPTS, keep, budget=30, **common)
    assert fast == few
    if kind != "gemma2":
        assert isinstance(engine_for(model), Fast)


def test_unmasked_answers_are_those_of_transformer_lens(tiny):
    keep = masks(tiny)[:1]
    for positions in ("last", "all"):
        said = answer(tiny, PROMPTS, keep, positions=positions, max_tokens=5, stop=(), quiet=True)[
            0
        ]
        for prompt, text in zip(PROMPTS, said, strict=True):
            whole = tiny.generate(
                prompt,
                max_new_tokens=5,
                do_sample=False,
                stop_at_eos=True,
                verbose=False,
                return_type="str",
            )
            assert isinstance(whole, str)
            assert whole.endswith(text)
            assert text


def test_last_reads_the_prompt_with_all_heads(tiny):
    """The first token that is said, by hand: z masked at the last position, or at all of them."""
    keep = masks(tiny)[2:]
    prompt = PROMPTS[0]
    tokens = tiny.to_tokens(prompt)
    for positions, since in (("last", tokens.shape[1] - 1), ("all", 0)):

        def scale(z, hook, since=since):
            z[:, since:] *= keep[0, hook.layer()][:, None]
            return z

        logits = tiny.run_with_hooks(
            tokens, fwd_hooks=[(f"blocks.{i}.attn.hook_z", scale) for i in range(2)]
        )
        wanted = tiny.tokenizer.decode([int(logits[0, -1].argmax())])
        said = answer(tiny, [prompt], keep, positions=positions, max_tokens=1, stop=(), quiet=True)
        assert said == [[wanted]]


def test_text_ends_before_the_first_stop_string(tiny):
    keep = masks(tiny)[:1]
    whole = answer(tiny, PROMPTS[:1], keep, max_tokens=8, stop=(), quiet=True)[0][0]
    mark = whole[3:5]
    cut = answer(tiny, PROMPTS[:1], keep, max_tokens=8, stop=("never", mark), quiet=True)[0][0]
    assert cut == whole[: whole.index(mark)]


def test_a_prompt_without_tokens_is_named(checkpoint):
    model = models.load(str(checkpoint("qwen2")))
    with pytest.raises(MechheadsError, match="no tokens"):
        answer(model, [""], masks(model), quiet=True)


def test_too_long_is_named(tiny):
    with pytest.raises(MechheadsError, match="Use shorter prompts"):
        answer(tiny, PROMPTS, masks(tiny), max_tokens=tiny.cfg.n_ctx, quiet=True)
