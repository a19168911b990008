"""The direct engine against the model's own blocks, and what both leave behind."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import checkpoints
import pytest
import torch
from pairs import random_pairs

from mechheads.engine.cached_run import measure
from mechheads.engine.direct import DirectEngine
from mechheads.engine.hooked import HookedEngine
from mechheads.engine.interventions import Replace, all_apart
from mechheads.engine.select import engine_for
from mechheads.metrics.token import METRICS, score
from mechheads.models import edge_gates
from mechheads.models.backends.blocks import Block
from mechheads.models.hooks import has_hooks, unknown_part
from mechheads.models.load import load
from mechheads.models.model import encoder_of
from mechheads.prompts.batches import batches

# Norms after attention, ALiBi, clipped or jointly normed queries: the hooked engine's.
UNKNOWN = {"bloom", "olmo-clipped", "olmo2", "olmo3", "olmoe", "gemma2", "gemma3"}


@pytest.mark.hooked
@pytest.mark.parametrize("kind", checkpoints.ARCHITECTURES)
def test_the_direct_engine_gives_what_the_blocks_give(kind: str, checkpoint: Callable[[str], Path]):
    model = load(str(checkpoint(kind)))
    assert (unknown_part(model) is not None) == (kind in UNKNOWN)
    assert isinstance(engine_for(model), HookedEngine if kind in UNKNOWN else DirectEngine)
    if kind in UNKNOWN:
        return
    torch.manual_seed(0)
    keep = torch.rand(3, model.cfg.n_layers, model.cfg.n_heads)
    for first, tokens in ((1, 1), (4, 2)):
        prompts = random_pairs(model, first, (8, 8, 11), tokens=tokens)
        for batch in batches(encoder_of(model), prompts):
            ends = []
            for engine in (HookedEngine(model), DirectEngine(model)):
                base, other = (
                    engine.cache(t, batch.first, batch.steps) for t in (batch.clean, batch.corrupt)
                )
                ends.append(engine.rerun(base, Replace(keep, other.z)))
            torch.testing.assert_close(*ends, rtol=1e-4, atol=1e-5)


def test_the_direct_engine_knows_sparse_models(checkpoint, tmp_path):
    folder = shutil.copytree(checkpoint("llama-gqa"), tmp_path / "sparse")
    edge_gates.write(folder, torch.randn(2, 4) * 0.1, {"base": "llama-gqa"})
    model = load(str(folder))
    assert isinstance(engine_for(model), DirectEngine)
    dense = load(str(checkpoint("llama-gqa")))
    tokens = torch.arange(20).view(2, 10) + 5
    whole = Replace(torch.ones(1, model.cfg.n_layers, model.cfg.n_heads))
    ends = []
    for engine in (HookedEngine(model), DirectEngine(model), DirectEngine(dense)):
        ends.append(engine.rerun(engine.cache(tokens, 3, 1), whole))
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(ends[1], ends[2], atol=1e-3)


def test_heads_of_somebody_else_s_hooks_are_run_by_the_model_itself(tiny):
    tiny.add_hook("blocks.0.hook_mlp_out", lambda value, hook: value * 0)
    try:
        assert isinstance(engine_for(tiny), HookedEngine)
    finally:
        tiny.reset_hooks()
    assert isinstance(engine_for(tiny), DirectEngine)


def test_nothing_is_left_on_the_model_after_an_interruption(tiny):
    class Stop:
        variants, start = 1, 0

        def touches(self, layer):
            return True

        def __call__(self, layer, z, where):
            raise KeyboardInterrupt

        def branch(self, layer, state_of):
            return all_apart(self, state_of)

    engine = HookedEngine(tiny)
    run = engine.cache(torch.arange(6)[None] + 4, 0, 1)
    with pytest.raises(KeyboardInterrupt):
        engine.rerun(run, Stop())
    assert not has_hooks(tiny)


def test_metrics_from_answer_tokens_alone_equal_those_from_all_logits(tiny):
    prompts = random_pairs(tiny, 2)
    (batch,) = batches(encoder_of(tiny), prompts)
    engine = engine_for(tiny)
    whole = Replace(torch.ones(1, tiny.cfg.n_layers, tiny.cfg.n_heads))
    end = engine.rerun(engine.cache(batch.clean, 0, 1), whole)
    batch = replace(batch, reference=tiny(batch.corrupt)[:, -1].detach())
    for metric in (METRICS[name] for name in METRICS.builtin):
        wanted = metric(score(tiny(batch.clean)[:, -1:], batch, whole=True))
        torch.testing.assert_close(measure(tiny, end, batch, metric)[0], wanted, atol=1e-5, rtol=0)


def test_variants_that_are_the_same_so_far_run_once(tiny, monkeypatch):
    # Kept heads grow one by one, as along a curve: most variants share their first layers.
    order = torch.tensor([5, 1, 4, 0, 7, 2, 6, 3])
    keep = torch.stack([torch.zeros(8).index_fill(0, order[:k], 1.0) for k in range(9)])
    keep = keep.view(9, tiny.cfg.n_layers, tiny.cfg.n_heads)
    (batch,) = batches(encoder_of(tiny), random_pairs(tiny, 2))
    states = []
    attend = Block.attend

    def watched(self, q, k, v):
        states.append(len(q) // 3)
        return attend(self, q, k, v)

    ends = []
    for engine in (HookedEngine(tiny), DirectEngine(tiny)):
        base, other = (engine.cache(t, 2, 1) for t in (batch.clean, batch.corrupt))
        monkeypatch.setattr(Block, "attend", watched)
        states.clear()
        ends.append(engine.rerun(base, Replace(keep, other.z)))
    torch.testing.assert_close(*ends, rtol=1e-4, atol=1e-5)
    # Four heads of the first layer join one after the other: five states enter the second.
    assert states == [5]
