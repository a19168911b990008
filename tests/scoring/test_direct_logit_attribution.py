"""Direct logit attribution against TransformerLens's own decomposition of the residual stream."""

import pytest
import torch
from pairs import random_pairs

from mechheads.errors import MechheadsError
from mechheads.models.load import load
from mechheads.models.model import encoder_of
from mechheads.prompts.batches import batches
from mechheads.scoring.direct_logit_attribution import direct


@pytest.fixture(params=["gpt2", "llama-gqa"])
def case(request, checkpoint):
    """A model of two layers, prompts, and the cache of the clean run."""
    model = load(str(checkpoint(request.param)))
    prompts = random_pairs(model, 3)
    (batch,) = batches(encoder_of(model), prompts)
    with torch.no_grad():
        clean = model.run_with_cache(batch.clean)[1]
    return model, prompts, batch, clean


def test_direct_parts_are_those_of_the_cache(case):
    model, prompts, batch, clean = case
    ours = direct(model, prompts)
    clean.compute_head_results()
    answers = torch.stack([batch.choices[:, 0, 0], batch.choices[:, 1, 0]], dim=1)
    writes = clean.stack_head_results(layer=-1, pos_slice=-1)
    parts = clean.apply_ln_to_stack(writes, layer=-1, pos_slice=-1)
    # apply_ln_to_stack leaves out the norm's weight, which TransformerLens folds elsewhere.
    along = model.W_U[:, answers[:, 0]] - model.W_U[:, answers[:, 1]]
    along = model.ln_final.w[:, None] * along
    wanted = torch.einsum("cbd,db->bc", parts, along)
    heads = model.cfg.n_layers * model.cfg.n_heads
    torch.testing.assert_close(
        ours.values[batch.pairs].flatten(1), wanted[:, :heads].detach(), rtol=1e-3, atol=1e-5
    )


def test_direct_of_other_metrics_and_longer_answers_is_refused(tiny):
    with pytest.raises(MechheadsError, match="logit_diff only, not prob_diff"):
        direct(tiny, random_pairs(tiny, 3), "prob_diff")
    with pytest.raises(MechheadsError, match="up to 2 tokens"):
        direct(tiny, random_pairs(tiny, 3, tokens=2))


def test_heads_behind_a_norm_have_no_direct_part(checkpoint):
    model = load(str(checkpoint("gemma2")))
    with pytest.raises(MechheadsError, match=r"norm between|caps its logits"):
        direct(model, random_pairs(model, 3))
