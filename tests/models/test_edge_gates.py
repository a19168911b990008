import json
from pathlib import Path
from shutil import copytree

import pytest
import torch
from checkpoints import ARCHITECTURES
from safetensors.torch import save_file

from mechheads import MechheadsError
from mechheads.engine.select import engine_for
from mechheads.models import edge_gates
from mechheads.models.hooks import has_hooks
from mechheads.models.load import find_backend, load, load_original
from mechheads.models.model import is_gated

BACKENDS = ["hooked", "bridge"] if find_backend(None) == "hooked" else ["bridge"]
TOKENS = torch.arange(0, 60, 5)[None]


def sparse_copy(folder: Path, target: Path, bias: torch.Tensor) -> str:
    copytree(folder, target)
    edge_gates.write(target, bias, {"base": folder.name})
    return str(target)


@pytest.fixture
def sparse(checkpoint, tmp_path):
    """A tiny random GPT-2 with about half of its edges closed."""
    bias = torch.randn(2, 4, generator=torch.Generator().manual_seed(0)) * 0.3
    folder = sparse_copy(checkpoint("gpt2"), tmp_path / "sparse", bias)
    return load(folder), bias, Path(folder)


def test_scores_that_are_known_up_to_a_shift_are_refused(checkpoint):
    with pytest.raises(MechheadsError, match=r"cannot be made sparse: .*ALiBi"):
        load_original(str(checkpoint("bloom")))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", [kind for kind in ARCHITECTURES if kind != "bloom"])
def test_every_architecture_is_gated_as_transformers_is(kind, backend, checkpoint, tmp_path):
    # `load` compares the logits of both; half-closed gates change them.
    folder = checkpoint(kind)
    dense = load(str(folder), backend=backend)
    shape = (dense.cfg.n_layers, dense.cfg.n_heads)
    bias = torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 0.1
    model = load(sparse_copy(folder, tmp_path / "sparse", bias), backend=backend)
    assert is_gated(model)
    assert not is_gated(dense)
    assert not has_hooks(model)
    # The direct engine computes the gates itself; the hooked one runs the gated blocks.
    assert type(engine_for(model)) is type(engine_for(dense))
    with torch.inference_mode():
        assert (model(TOKENS) - dense(TOKENS)).abs().max() > 1e-4


def test_the_pattern_hook_shows_the_masked_softmax_and_the_values_follow_it(sparse):
    model, bias, _ = sparse
    with torch.inference_mode():
        _, cache = model.run_with_cache(TOKENS)
    for layer in range(2):
        scores = cache["attn_scores", layer]
        by_hand = scores.softmax(-1) * (scores + bias[layer][None, :, None, None] > 0)
        assert torch.equal(cache["pattern", layer], by_hand)
        z = torch.einsum("bhqk,bkhd->bqhd", by_hand, cache["v", layer])
        torch.testing.assert_close(cache["z", layer], z)
        causal = torch.ones_like(scores).tril() > 0
        assert 0.1 < (by_hand > 0)[causal].float().mean() < 0.9
        assert by_hand.sum(-1).min() < 0.5  # not renormalised


def test_gates_forced_open_are_the_dense_model_exactly(checkpoint, tmp_path):
    folder = sparse_copy(checkpoint("gpt2"), tmp_path / "open", torch.full((2, 4), 1e4))
    dense = load(str(checkpoint("gpt2")))
    with torch.inference_mode():
        assert torch.equal(load(folder)(TOKENS), dense(TOKENS))


def test_gates_forced_shut_leave_no_attention(checkpoint, tmp_path):
    folder = sparse_copy(checkpoint("gpt2"), tmp_path / "shut", torch.full((2, 4), -1e4))
    with torch.inference_mode():
        _, cache = load(folder).run_with_cache(TOKENS)
    assert cache["z", 0].abs().max() == cache["z", 1].abs().max() == 0


@pytest.mark.hooked
def test_processing_the_weights_of_a_sparse_model_keeps_its_predictions(sparse):
    model, _, folder = sparse
    with torch.no_grad():
        for block in model.blocks:
            assert block.attn.b_V.abs().max() > 0, "without value biases nothing could go wrong"
        plain = model(TOKENS).log_softmax(-1)
        processed = load(str(folder), process=True)(TOKENS).log_softmax(-1)
    torch.testing.assert_close(plain, processed, atol=1e-4, rtol=1e-4)


def test_hooks_of_the_user_come_and_go_and_the_gates_stay(sparse):
    model, _, _ = sparse
    with torch.inference_mode():
        before = model(TOKENS)
        model.run_with_hooks(TOKENS, fwd_hooks=[("blocks.0.hook_attn_out", lambda x, hook: x * 0)])
        model.reset_hooks()
        assert torch.equal(model(TOKENS), before)


def test_sampled_gates_are_binary_and_open_as_often_as_the_sigmoid_says():
    torch.manual_seed(0)
    logits = torch.tensor([-2.0, 0.0, 3.0]).repeat(1, 1, 40_000, 1).requires_grad_()
    bias = torch.zeros(1, requires_grad=True)
    drawn, expected = edge_gates.OpenEdges.apply(logits, bias, torch.ones(1, 40_000).bool(), True)
    assert set(drawn.detach().unique().tolist()) == {0.0, 1.0}
    torch.testing.assert_close(
        drawn.detach()[0, 0].mean(0), torch.sigmoid(logits[0, 0, 0]), atol=0.01, rtol=0
    )
    torch.testing.assert_close(expected, torch.sigmoid(logits).sum()[None])
    drawn.sum().backward()
    assert logits.grad is not None
    assert bias.grad is not None
    torch.testing.assert_close(bias.grad[0], logits.grad.sum())
    # E over logistic noise of sigmoid'(g + noise) is the integral of s(1-s) against its density.
    noise = torch.linspace(-40, 40, 80_001)
    density = torch.sigmoid(noise) * (1 - torch.sigmoid(noise))
    for g, slope in zip((-2.0, 0.0, 3.0), logits.grad[0, 0].mean(0), strict=True):
        soft = torch.sigmoid(g + noise)
        wanted = torch.trapezoid(soft * (1 - soft) * density, noise)
        assert abs(slope - wanted) < 0.003


def test_expected_and_open_edges_are_counted_at_the_queries_alone(checkpoint):
    original = load_original(str(checkpoint("gpt2")))
    queries = torch.zeros(1, 12).bool()
    queries[0, [0, 4]] = True
    bias = torch.full((2, 4), 1e4)
    with edge_gates.Gated(bias, queries) as gated:
        original.hf_model(TOKENS, use_cache=False)
    assert gated.expected.item() == pytest.approx((1 + 5) * 2 * 4)
    assert gated.open.tolist() == [[6] * 4] * 2


def test_attention_that_cannot_be_seen_is_refused(checkpoint):
    original = load_original(str(checkpoint("gpt2")))
    original.hf_model.set_attn_implementation("sdpa")
    with pytest.raises(MechheadsError, match="cannot be gated: 0 of 2 layers"):  # noqa: SIM117
        with edge_gates.Gated(torch.zeros(2, 4)):
            original.hf_model(TOKENS, use_cache=False)


def _no_file(folder: Path) -> None:
    (folder / edge_gates.BIAS_FILE).unlink()


def _no_scheme(folder: Path) -> None:
    (folder / edge_gates.SCHEME_FILE).unlink()


def _other_scheme(folder: Path) -> None:
    (folder / edge_gates.SCHEME_FILE).write_text('{"scheme": "entmax"}')


def _damaged(folder: Path) -> None:
    (folder / edge_gates.SCHEME_FILE).write_text("{")


def _other_shape(folder: Path) -> None:
    save_file({"bias": torch.zeros(3, 4)}, folder / edge_gates.BIAS_FILE)


def _no_mark(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    del config["edge_gates"]
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_no_file, r"is a sparse model, but edge_gates.safetensors is missing\. Copy it there"),
        (_no_scheme, r"is a sparse model, but edge_gates.json is missing\. Copy it there"),
        (_other_scheme, "names the scheme 'entmax', but this version supports only"),
        (_damaged, r"gates of .* cannot be read .* Copy edge_gates.json"),
        (_other_shape, "has gates for 3 x 4 heads, but the model has 2 x 4"),
        (_no_mark, "its config.json has no 'edge_gates'"),
    ],
)
def test_a_sparse_directory_that_is_not_whole_is_refused(spoil, message, sparse):
    _, _, folder = sparse
    spoil(folder)
    with pytest.raises(MechheadsError, match=message):
        load(str(folder))


def test_a_bias_feels_open_edges_as_much_where_the_sigmoid_is_flat():
    scores = torch.randn(1, 4, 6, 6, generator=torch.Generator().manual_seed(0))
    scores = scores.masked_fill(torch.ones(6, 6).triu(1) > 0, -torch.inf).requires_grad_()
    for level in (0.0, 30.0):
        bias = torch.full((4,), level, requires_grad=True)
        _, expected = edge_gates.OpenEdges.apply(scores, bias, torch.ones(1, 6).bool(), False)
        by_scores, by_bias = torch.autograd.grad(expected.sum(), (scores, bias))
        torch.testing.assert_close(by_bias, expected)
        s = torch.sigmoid(scores + level)
        torch.testing.assert_close(by_scores, s * (1 - s))  # scores feel the sigmoid's slope
    # Six queries with 1 to 6 keys, all open.
    assert torch.allclose(by_bias, torch.full((4,), 21.0))
