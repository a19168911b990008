"""Greedy answers with masked heads: cached against uncached, against TransformerLens."""

from typing import Any

import pytest
import torch

import tasks
from mechheads.engine.direct import DirectEngine
from mechheads.engine.generate import generate
from mechheads.engine.hooked import HookedEngine
from mechheads.engine.select import engine_for
from mechheads.errors import MechheadsError
from mechheads.models.load import load
from mechheads.prompts import Pair

PROMPTS = (
    "When Mary and John went to the store,",
    "When Tom and Anna went to the store,",
    "Then James gave",
    "When Anna and Tom",
)


def masks(model: Any) -> torch.Tensor:
    torch.manual_seed(0)
    shape = (model.cfg.n_layers, model.cfg.n_heads)
    return torch.stack([torch.ones(shape), torch.zeros(shape), torch.rand(shape).round()])


@pytest.mark.parametrize("kind", ["gpt2", "llama-gqa", "neox", "gemma2"])
@pytest.mark.parametrize("positions", ["last", "all"])
def test_cached_answers_are_uncached_ones(kind, positions, checkpoint):
    model = load(str(checkpoint(kind)))
    keep = masks(model)
    common = {"positions": positions, "max_tokens": 6, "stop": (), "quiet": True}
    fast = generate(model, PROMPTS, keep, **common)
    plain = generate(model, PROMPTS, keep, engine=HookedEngine(model), **common)
    assert fast == plain
    few = generate(model, PROMPTS, keep, budget=30, **common)
    assert fast == few
    if kind != "gemma2":
        assert isinstance(engine_for(model), DirectEngine)


def test_unmasked_answers_are_those_of_transformer_lens(tiny):
    keep = masks(tiny)[:1]
    for positions in ("last", "all"):
        said = generate(
            tiny, PROMPTS, keep, positions=positions, max_tokens=5, stop=(), quiet=True
        )[0]
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


def by_hand(model: Any, prompt: str, keep: torch.Tensor, since: int, n: int) -> str:
    """The whole text again for every token, z masked from a position on."""
    tokens = model.to_tokens(prompt)
    start = tokens.shape[1]

    def scale(z, hook):
        z[:, since:] *= keep[hook.layer()][:, None]
        return z

    hooks: list[Any] = [(f"blocks.{i}.attn.hook_z", scale) for i in range(model.cfg.n_layers)]
    for _ in range(n):
        logits = model.run_with_hooks(tokens, fwd_hooks=hooks)
        tokens = torch.cat([tokens, logits[:, -1:].argmax(-1)], dim=1)
    tokenizer: Any = model.tokenizer
    return tokenizer.decode(tokens[0, start:].tolist())


def test_last_reads_the_prompt_with_all_heads(tiny):
    """`last` masks z from the prompt's last position on, `all` everywhere: other texts."""
    keep = masks(tiny)[2:]
    said = {}
    for positions in ("last", "all"):
        (said[positions],) = generate(
            tiny, PROMPTS, keep, positions=positions, max_tokens=6, stop=(), quiet=True
        )
        for prompt, text in zip(PROMPTS, said[positions], strict=True):
            since = tiny.to_tokens(prompt).shape[1] - 1 if positions == "last" else 0
            assert text == by_hand(tiny, prompt, keep[0], since, 6)
    assert sum(a != b for a, b in zip(*said.values(), strict=True)) >= 2


@pytest.mark.parametrize("positions", ["last", "all"])
def test_patched_text_is_that_of_plain_hooks(positions):
    """Patched heads have the z of the corrupted prompt, followed by the same new tokens."""
    model = load("mini")
    prompts = tasks.make("ioi", model, n=4)
    some = [(1, 1), (2, 0), (2, 1), (2, 7), (3, 3), (3, 4), (3, 6)]
    common: Any = {"positions": positions, "max_tokens": 4, "stop": (), "quiet": True}
    patched: Any = {"ablate": some, "replacement": "corrupt", **common}
    said = generate(model, prompts, **patched)
    assert generate(model, prompts, engine=HookedEngine(model), **patched) == said
    assert generate(model, prompts[1], **patched) == said[1]
    assert sum(map(str.__ne__, said, generate(model, prompts, **common))) > 1
    tokenizer: Any = model.tokenizer
    for pair, text in zip(prompts, said, strict=True):
        now, corrupt = model.to_tokens(pair.clean), model.to_tokens(pair.corrupt)
        start = now.shape[1]
        since = start - 1 if positions == "last" else 0
        for _ in range(4):
            _, theirs = model.run_with_cache(torch.cat([corrupt, now[:, start:]], dim=1))

            def patch(z, hook, theirs=theirs, since=since):
                mine = [head for layer, head in some if layer == hook.layer()]
                z[:, since:, mine] = theirs[hook.name][:, since:, mine]
                return z

            hooks: list[Any] = [(f"blocks.{i}.attn.hook_z", patch) for i in range(4)]
            logits = model.run_with_hooks(now, fwd_hooks=hooks)
            now = torch.cat([now, logits[:, -1:].argmax(-1)], dim=1)
        assert text == tokenizer.decode(now[0, start:].tolist())


def test_patched_text_needs_a_corrupted_prompt(tiny):
    with pytest.raises(MechheadsError, match="takes a pair or prompts that have corrupted prompts"):
        generate(tiny, PROMPTS[0], ablate="L0H0", replacement="corrupt")
    with pytest.raises(MechheadsError, match="Choose from: corrupt, zero"):
        generate(tiny, PROMPTS[0], ablate="L0H0", replacement="mean")
    pair = Pair("When Mary and John", "When Mary", (" John",), ())
    with pytest.raises(MechheadsError, match="Pick words that tokenize alike"):
        generate(tiny, pair, ablate="L0H0", replacement="corrupt")


def test_text_ends_before_the_first_stop_string(tiny):
    keep = masks(tiny)[:1]
    whole = generate(tiny, PROMPTS[:1], keep, max_tokens=8, stop=(), quiet=True)[0][0]
    mark = whole[3:5]
    cut = generate(tiny, PROMPTS[:1], keep, max_tokens=8, stop=("never", mark), quiet=True)[0][0]
    assert cut == whole[: whole.index(mark)]


def test_a_prompt_without_tokens_is_named(checkpoint):
    model = load(str(checkpoint("qwen2")))
    with pytest.raises(MechheadsError, match="no tokens"):
        generate(model, [""], masks(model), quiet=True)


def test_too_long_is_named(tiny):
    with pytest.raises(MechheadsError, match="Use shorter prompts"):
        generate(tiny, PROMPTS, masks(tiny), max_tokens=tiny.cfg.n_ctx, quiet=True)
