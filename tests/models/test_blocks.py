from typing import Any

import checkpoints
import pytest
import torch
from pairs import random_pairs
from torch.nn import functional as F

from mechheads import load
from mechheads.engine import select
from mechheads.engine.direct import DirectEngine
from mechheads.engine.hooked import HookedEngine
from mechheads.engine.interventions import Replace
from mechheads.models.backends import blocks, products
from mechheads.models.backends.blocks import neurons
from mechheads.models.backends.products import linear, without_zeros
from mechheads.models.load import BACKENDS, find_backend
from mechheads.models.model import encoder_of, shape_of
from mechheads.prompts.batches import batches
from mechheads.scoring.attribution_patching import attribution


def weights(into, out):
    return torch.randn(into, out), torch.randn(out)


@pytest.mark.parametrize("piece", [1, 1000, 1 << 20])
@pytest.mark.parametrize("gated", [False, True])
def test_pieces_of_an_mlp_are_the_whole(gated, piece, monkeypatch):
    monkeypatch.setattr(blocks, "PIECE", piece)
    torch.manual_seed(0)
    x, into, out, gate = torch.randn(3, 5, 7, 8), weights(8, 20), weights(20, 8), weights(8, 20)
    shift = torch.randn(20)
    if gated:
        inner = F.silu(x @ gate[0] + gate[1]) * (x @ into[0] + into[1]) + shift
        extra: Any = (gate, shift)
    else:
        inner, extra = F.silu(x @ into[0] + into[1]), ()
    kept = x.clone()
    with torch.no_grad():
        found = neurons(x, F.silu, into, out, *extra)
    torch.testing.assert_close(found, inner @ out[0] + out[1], rtol=1e-4, atol=1e-4)
    assert (x == kept).all()
    # With gradients nothing is overwritten that the way back needs.
    x.requires_grad_()
    found = torch.autograd.grad(neurons(x, F.silu, into, out, *extra).sum(), x)[0]
    inner = into if not gated else gate
    part = F.silu(x @ inner[0] + inner[1])
    part = part * (x @ into[0] + into[1]) + shift if gated else part
    wanted = torch.autograd.grad((part @ out[0] + out[1]).sum(), x)[0]
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(not products.mkl_is_slow(), reason="MKL is as fast here")
def test_products_do_not_depend_on_how_tensors_lie_in_memory(monkeypatch):
    monkeypatch.setattr(products, "SMALL", 1)
    torch.manual_seed(0)
    base, weight, bias = torch.randn(20, 16), torch.randn(8, 24), torch.randn(24)
    inputs = (base[:, ::2], base[:, 3:11], base[:1, :8].expand(20, 8), torch.randn(8, 20).T)
    matrices = (weight, weight.T.contiguous().T, torch.randn(8, 48)[:, ::2], weight[:, :1])
    for x in inputs:
        for matrix in (m.expand(8, 24) for m in matrices):
            for shift in (bias, torch.randn(48)[::2], bias[:1].expand(24)):
                with torch.inference_mode():
                    found = linear(x, matrix, shift)
                torch.testing.assert_close(found, x @ matrix + shift, rtol=1e-4, atol=1e-4)


def test_a_bias_of_zeros_need_not_be_added():
    weight, bias = weights(4, 6)
    x = torch.randn(2, 3, 4)
    assert without_zeros((weight, bias))[1] is bias
    assert without_zeros((weight, torch.zeros(6)))[1] is None
    torch.testing.assert_close(linear(x, weight, None), linear(x, weight, torch.zeros(6)))


@pytest.mark.skipif(not products.mkl_is_slow(), reason="MKL is as fast here")
@pytest.mark.parametrize("layout", ["into, out", "out, into"])
@pytest.mark.parametrize("biased", [False, True])
def test_both_libraries_give_the_same_products_and_gradients(layout, biased, monkeypatch):
    torch.manual_seed(0)
    weight, bias = torch.randn(48, 80), torch.randn(80) if biased else None
    if layout == "out, into":
        weight = weight.T.contiguous().T
    x = torch.randn(3, 50, 48, requires_grad=True)
    asked = []
    onednn = products._onednn
    monkeypatch.setattr(products, "_onednn", lambda *given: asked.append(1) or onednn(*given))
    found = {}
    for small in (1, 1 << 40):
        monkeypatch.setattr(products, "SMALL", small)
        y = linear(x, weight, bias)
        with torch.inference_mode():
            same = linear(x, weight, bias)
        found[small] = (y, torch.autograd.grad(y.square().sum(), x)[0], same)
    assert len(asked) == 3  # forward, back, and without gradients
    for one, two in zip(*found.values(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-4)
    assert torch.allclose(found[1][0], x @ weight + (0 if bias is None else bias), atol=1e-4)
    # A weight that wants a gradient gets it.
    monkeypatch.setattr(products, "SMALL", 1)
    linear(x, weight.requires_grad_(), bias).sum().backward()
    assert weight.grad is not None
    with torch.no_grad():  # where nobody asks for one, oneDNN is as good
        linear(x, weight, bias)
    assert len(asked) == 4


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["gpt2", "llama-gqa", "qwen2", "phi"])
def test_the_direct_engine_in_pieces_gives_what_the_blocks_give(
    kind, backend, checkpoint, monkeypatch
):
    if backend == "hooked" and find_backend(None) != "hooked":
        pytest.skip("this TransformerLens has no HookedTransformer")
    monkeypatch.setattr(blocks, "PIECE", 2000)  # bytes: about ten tokens
    monkeypatch.setattr(products, "SMALL", 1)
    model = load(str(checkpoint(kind)), backend=backend)
    torch.manual_seed(0)
    (batch, *_) = batches(encoder_of(model), random_pairs(model, 1, (8, 8, 11)))
    ends = []
    with torch.inference_mode():
        keep = torch.rand(3, *shape_of(model).grid)
        for engine in (HookedEngine(model), DirectEngine(model)):
            base, other = (engine.cache(t, 1, 1) for t in (batch.clean, batch.corrupt))
            ends.append(engine.rerun(base, Replace(keep, other.z)))
    torch.testing.assert_close(*ends, rtol=1e-4, atol=1e-5)


def test_a_pass_with_gradients_takes_fewer_tokens_and_changes_nothing(checkpoint, monkeypatch):
    model = load(str(checkpoint("llama-gqa")))
    assert select.gradient_budget(model) == select.budget_for(model)
    prompts = random_pairs(model, 1, (8,) * 6)
    whole = attribution(model, prompts, quiet=True).values
    monkeypatch.setattr(select, "KEPT", 1)
    assert select.gradient_budget(model) == 1
    assert select.gradient_budget(model, 300) == 300  # the user knows better
    torch.testing.assert_close(attribution(model, prompts, quiet=True).values, whole)


def test_what_a_pass_with_gradients_keeps_is_what_the_budget_counts(tmp_path, monkeypatch):
    kept: dict[int, int] = {}
    model = load(str(checkpoints.write(tmp_path / "deep", "llama-gqa", num_hidden_layers=6)))
    own = {weight.untyped_storage().data_ptr() for weight in model.parameters()}

    def keep(x):
        if x.untyped_storage().data_ptr() not in own:
            kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    prompts = random_pairs(model, 1, (8,) * 6)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        attribution(model, prompts, quiet=True)
    monkeypatch.setattr(select, "KEPT", sum(kept.values()))
    # The last layer runs at the last position alone, and the first token is never changed.
    assert 0.5 * 6 * 8 < select.gradient_budget(model) < 1.1 * 6 * 8


def test_engines_are_compared_again_only_if_the_model_has_changed(checkpoint, monkeypatch):
    asked = []
    agree = select._agree
    monkeypatch.setattr(select, "_agree", lambda *engines: asked.append(1) or agree(*engines))
    model = load(str(checkpoint("llama-gqa")))
    for _ in range(3):
        assert isinstance(select.engine_for(model), DirectEngine)
    assert len(asked) == 1
    with torch.no_grad():
        next(model.parameters()).mul_(1.5)
    select.engine_for(model)
    assert len(asked) == 2
    model.cfg.model_name = "other"
    select.engine_for(model)
    assert len(asked) == 3


def test_a_model_whose_engines_disagree_is_run_by_its_own_blocks(checkpoint, monkeypatch):
    model = load(str(checkpoint("llama-gqa")))
    monkeypatch.setattr(select, "_agree", lambda *engines: False)
    for _ in range(2):
        assert isinstance(select.engine_for(model), HookedEngine)
