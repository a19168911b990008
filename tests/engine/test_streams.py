"""The residual stream between layers under an intervention, against the model's own hooks."""

import pytest
import torch
from pairs import random_pairs

from mechheads.engine.direct import DirectEngine
from mechheads.engine.hooked import HookedEngine
from mechheads.engine.interventions import FrozenHeads, Replace, SetHeads
from mechheads.models.backends.blocks import Block
from mechheads.models.load import load
from mechheads.models.model import encoder_of
from mechheads.prompts.batches import batches


def every_z(model, tokens):
    _, cache = model.run_with_cache(tokens)
    return [cache[f"blocks.{layer}.attn.hook_z"] for layer in range(model.cfg.n_layers)]


@torch.no_grad()
def by_hooks(model, tokens, change):
    """What enters both layers and what leaves the second, in two variants."""
    kept = []

    def keep(x, hook):
        kept.append(x.unflatten(0, (2, -1)))

    def set_z(z, hook):
        variants = z.unflatten(0, (2, -1))
        return change(hook.layer(), variants, slice(0, z.shape[1])).flatten(0, 1)

    names = ("blocks.0.hook_resid_pre", "blocks.1.hook_resid_pre", "blocks.1.hook_resid_post")
    hooks = [(f"blocks.{layer}.attn.hook_z", set_z) for layer in range(2)]
    model.run_with_hooks(tokens.repeat(2, 1), fwd_hooks=[*hooks, *((name, keep) for name in names)])
    return kept


# Sequential and parallel blocks, and blocks that only the hooked engine knows.
@pytest.mark.parametrize("kind", ["gpt2", "llama-gqa", "neox", "gemma2"])
@torch.no_grad()
def test_advancing_gives_the_stream_that_enters_a_layer_at_all_positions(kind, checkpoint):
    model = load(str(checkpoint(kind)))
    (batch,) = batches(encoder_of(model), random_pairs(model, 4))
    base, other = every_z(model, batch.clean), every_z(model, batch.corrupt)
    torch.manual_seed(0)
    two = torch.stack([other[0][:, :, 1], other[1][:, :, 3]])
    two[:, :, : batch.first] = base[0][:, : batch.first, 1]  # runs are the same up to there
    changes = [
        Replace(torch.rand(2, model.cfg.n_layers, model.cfg.n_heads), other),
        SetHeads({(0, 1): two}),
        FrozenHeads(base, 0, [2, 0], torch.stack([other[0][:, :, 2], other[0][:, :, 0]])),
    ]
    engines = [HookedEngine(model), *([] if kind == "gemma2" else [DirectEngine(model)])]
    for change in changes:
        start, middle, end = by_hooks(model, batch.clean, change)
        assert (middle[0] - middle[1]).abs().max() > 1e-3
        for engine in engines:
            run = engine.cache(batch.clean, batch.first, batch.steps)
            one = engine.advance(run, run.entering[0][None], range(1), change)
            then = engine.advance(run, one, range(1, 2), change)
            whole = engine.advance(run, start, range(2), change)
            for ours, wanted in ((one, middle), (then, end), (whole, end)):
                torch.testing.assert_close(ours, wanted, rtol=1e-4, atol=1e-5)
            rerun = engine.rerun(run, change)
            torch.testing.assert_close(rerun, end[:, :, -run.steps :], rtol=1e-4, atol=1e-5)


def test_where_all_heads_are_frozen_no_head_attends(tiny, monkeypatch):
    engine = DirectEngine(tiny)
    run, other = (engine.cache(torch.arange(i, i + 6)[None], 2, 1) for i in (4, 9))
    frozen = FrozenHeads(run.z, 0, [1], other.z[0][None, :, :, 1])
    monkeypatch.setattr(Block, "attend", lambda *_: pytest.fail("attention was run"))
    engine.rerun(run, frozen)
    engine.advance(run, run.entering[0][None], range(2), frozen)
