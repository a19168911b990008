"""GIM equals the same backward pass built from hooks that change only gradients."""

import pytest
import torch
from pairs import random_pairs

from mechheads.errors import MechheadsError
from mechheads.metrics.token import METRICS, score
from mechheads.models.load import load
from mechheads.models.model import encoder_of
from mechheads.prompts.batches import batches
from mechheads.scoring.attribution_patching import attribution
from mechheads.scoring.backward.gim import gim


class Warm(torch.autograd.Function):
    """A softmax whose backward pass is that of a warmer one."""

    @staticmethod
    def forward(ctx, scores):
        ctx.save_for_backward((scores / 2).softmax(-1))
        return scores.softmax(-1)

    @staticmethod
    def backward(ctx, *slopes):
        (warm,) = ctx.saved_tensors
        return warm * (slopes[0] - (warm * slopes[0]).sum(-1, keepdim=True))


def scaled(share):
    return lambda value, hook: value * share + (value * (1 - share)).detach()


def hooks_of(model):
    kept, hooks = {}, []

    def keep(value, hook):
        kept["scores"] = value

    for i in range(model.cfg.n_layers):
        attention, mlp = f"blocks.{i}.attn.hook_", f"blocks.{i}.mlp.hook_"
        shares = {"q": 0.25, "k": 0.25, "v": 0.5}
        hooks += [(f"{attention}{part}", scaled(share)) for part, share in shares.items()]
        hooks += [(f"{attention}attn_scores", keep)]
        hooks += [(f"{attention}pattern", lambda value, hook: Warm.apply(kept["scores"]))]
        if model.cfg.gated_mlp:
            hooks += [(f"{mlp}{part}", scaled(0.5)) for part in ("pre", "pre_linear")]
    norms = [name for name in model.hook_dict if name.endswith("hook_scale")]
    return [*hooks, *((name, lambda value, hook: value.detach()) for name in norms)]


@pytest.mark.hooked
@pytest.mark.parametrize("kind", ["gpt2", "llama-gqa", "neox"])
def test_it_equals_a_backward_pass_changed_by_hooks(kind, checkpoint):
    model = load(str(checkpoint(kind)))
    prompts = random_pairs(model, 3)
    (batch,) = batches(encoder_of(model), prompts)
    _, clean = model.run_with_cache(batch.clean)
    _, corrupt = model.run_with_cache(batch.corrupt)
    names = [f"blocks.{i}.attn.hook_z" for i in range(model.cfg.n_layers)]
    kept = {}

    def keep(value, hook):
        kept[hook.name] = value

    with torch.enable_grad():
        logits = model.run_with_hooks(
            clean["blocks.0.hook_resid_pre"].clone().requires_grad_(),
            start_at_layer=0,
            fwd_hooks=[*hooks_of(model), *((name, keep) for name in names)],
        )
        value = METRICS["logit_diff"](score(logits[:, -batch.steps :], batch)).sum()
        slopes = torch.autograd.grad(value, [kept[name] for name in names])
    changes = [(corrupt[n] - clean[n]) * s for n, s in zip(names, slopes, strict=True)]
    wanted = -torch.stack([change.sum((1, 3)) for change in changes], 1)
    for backend in ("hooked", "bridge"):
        ours = gim(load(str(checkpoint(kind)), backend=backend), prompts)
        torch.testing.assert_close(ours.values[batch.pairs], wanted, rtol=1e-3, atol=1e-5)
    plain = attribution(model, prompts).values[batch.pairs]
    assert (plain - wanted).abs().max() > 1e-4


def test_a_temperature_must_be_positive(tiny):
    with pytest.raises(MechheadsError, match="above 0"):
        gim(tiny, random_pairs(tiny, 3), temperature=0.0)
