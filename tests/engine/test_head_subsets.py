"""Many masks in one pass against one pass with hooks each."""

import pytest
import torch
from pairs import random_pairs

from mechheads.engine import head_subsets
from mechheads.engine.direct import DirectEngine
from mechheads.engine.head_subsets import measure_subsets, nested
from mechheads.errors import MechheadsError
from mechheads.metrics.token import METRICS, score
from mechheads.models.load import load
from mechheads.models.model import encoder_of
from mechheads.prompts.batches import batches


@torch.inference_mode()
def one_by_one(model, prompts, keep):
    values = torch.zeros(len(keep), len(prompts))
    for batch in batches(encoder_of(model), prompts):
        _, cache = model.run_with_cache(batch.corrupt)
        for v, mask in enumerate(keep):

            def replace(z, hook, mask=mask, cache=cache):
                kept = mask[hook.layer()][:, None]
                return z * kept + cache[hook.name] * (1 - kept)

            names = [f"blocks.{layer}.attn.hook_z" for layer in range(model.cfg.n_layers)]
            logits = model.run_with_hooks(batch.clean, fwd_hooks=[(n, replace) for n in names])
            values[v, batch.pairs] = METRICS["logit_diff"](score(logits[:, -1:], batch))
    return values


@pytest.mark.parametrize("kind", ["gpt2", "llama-gqa", "neox", "olmo2"])
def test_masks_together_equal_masks_one_by_one(kind, checkpoint):
    model = load(str(checkpoint(kind)))
    prompts = random_pairs(model, 2, (8, 8, 10))
    torch.manual_seed(0)
    ranking = [divmod(int(i), 4) for i in torch.randperm(8)]
    keep = torch.cat([nested(ranking, 2, 4), torch.rand(3, 2, 4), torch.randint(2, (4, 2, 4))])
    wanted = one_by_one(model, prompts, keep)
    for budget in (None, 40):
        found = measure_subsets(model, prompts, keep, budget=budget)
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)


def test_all_heads_kept_are_the_clean_run_and_none_the_corrupted_heads(tiny):
    prompts = random_pairs(tiny, 2)
    ranking = [divmod(i, 4) for i in range(8)]
    found = measure_subsets(tiny, prompts, nested(ranking, 2, 4))
    (batch,) = batches(encoder_of(tiny), prompts)
    with torch.inference_mode():
        clean = METRICS["logit_diff"](score(tiny(batch.clean)[:, -1:], batch))
    torch.testing.assert_close(found[-1, batch.pairs], clean, rtol=0, atol=1e-5)
    # The last token is the same in both prompts and MLPs see nothing else: as the corrupted run.
    with torch.inference_mode():
        corrupt = METRICS["logit_diff"](score(tiny(batch.corrupt)[:, -1:], batch))
    torch.testing.assert_close(found[0, batch.pairs], corrupt, rtol=0, atol=1e-5)


def test_a_pass_has_many_different_masks_rather_than_many_prompts(tiny, monkeypatch):
    prompts = random_pairs(tiny, 8)
    passes = []
    engine, rerun = head_subsets.engine_for(tiny), DirectEngine.rerun

    def spy(self, run, intervention):
        different = len(intervention.keep.unique(dim=0))
        passes.append((run.shape[0], intervention.variants, different))
        return rerun(self, run, intervention)

    monkeypatch.setattr(DirectEngine, "rerun", spy)
    # Its own check is no pass.
    monkeypatch.setattr(head_subsets, "engine_for", lambda model: engine)
    ranking = [divmod(i, 4) for i in range(8)]
    keep = nested(ranking, 2, 4)
    twice = measure_subsets(tiny, prompts, torch.cat([keep, keep]), budget=64)
    # A budget for eight rows at once goes to eight masks of one row; none of them runs twice.
    assert {rows for rows, _, _ in passes} == {1}
    assert all(variants == different for _, variants, different in passes)
    assert sum(rows * variants for rows, variants, _ in passes) == len(prompts) * len(keep)
    torch.testing.assert_close(twice[: len(keep)], twice[len(keep) :], rtol=0, atol=0)


def test_masks_of_another_model_are_refused(tiny):
    with pytest.raises(MechheadsError, match="must have 2 x 4 heads"):
        measure_subsets(tiny, random_pairs(tiny, 2), torch.ones(1, 3, 4))
