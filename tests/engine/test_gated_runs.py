"""Gated runs over shared prefixes against the model's own blocks with hooks, prompt by prompt."""

import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import checkpoints
import pytest
import torch

import mechheads
from mechheads.engine.gate_losses import Minibatches, shared_out
from mechheads.engine.gated_runs import TOGETHER, prefixes
from mechheads.engine.hooked import HookedEngine
from mechheads.engine.side_by_side import side_by_side
from mechheads.models import edge_gates
from mechheads.models.hooks import unknown_part
from mechheads.models.load import find_backend
from mechheads.models.model import encoder_of, shape_of
from mechheads.prompts import Pair, Prompts
from mechheads.scoring.gate_fitting import FitSettings, fit_gates, make_minibatches

CPU = torch.device("cpu")
BACKENDS = ["hooked", "bridge"] if find_backend(None) == "hooked" else ["bridge"]
MORE = {"gpt2": {"n_layer": 4}, "gptj": {"n_layer": 3}}
DEEP = {kind: MORE.get(kind, {"num_hidden_layers": 3}) for kind in ("gpt2", "gptj", "neox")}
DEEP |= {kind: {"num_hidden_layers": 3} for kind in ("llama-gqa", "qwen3", "phi")}


def branching() -> Prompts:
    """Prompts of four lengths that share beginnings, with answers of one to three tokens.

    Tokenizers that take words apart still know digits.
    """
    ends = (
        ("", ("4",)),
        ("41", ("2", "34")),
        ("43", ("213",)),
        ("413", ("21",)),
        ("412", ("3", "2")),
    )
    pairs = tuple(Pair("123" + end, "", answers, ()) for end, answers in ends)
    return Prompts("branching", "logprob", pairs)


def both_ways(model: Any, prompts: Prompts, **settings: Any) -> tuple[Minibatches, Minibatches]:
    """With shared prefixes, and by hooks."""
    fast = make_minibatches(model, prompts, FitSettings(batch=4), **settings)
    assert fast.gated is not None
    return fast, replace(fast, engine=HookedEngine(model), gated=None)


def check_alike(model: Any, prompts: Prompts, limit: float = 1e-9, **settings: Any) -> None:
    """Losses and slopes of five variants by both ways, equal to `limit` of the largest."""
    fast, plain = both_ways(model, prompts, **settings)
    gates = torch.rand(5, *shape_of(model).grid, generator=torch.Generator().manual_seed(0))
    gates = gates.to(next(model.parameters()).dtype)
    gates[0], gates[1] = 1 - 1e-6, 0.0
    for update in range(2):
        (loss, slope), (wanted, wanted_slope) = (x.slope(update, gates) for x in (fast, plain))
        for one, two in ((loss, wanted), (slope, wanted_slope)):
            assert (one - two).abs().max() <= limit * two.abs().max()
        assert slope.abs().amax((1, 2)).min() > 1e-4
    assert (fast.nll(gates) - plain.nll(gates)).abs().max() <= limit * plain.nll(gates).max()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", checkpoints.ARCHITECTURES)
def test_losses_and_slopes_are_those_of_the_blocks_with_hooks(kind, backend, checkpoint):
    model = mechheads.load(str(checkpoint(kind)), backend=backend)
    if unknown_part(model) is not None:
        fast = make_minibatches(model, branching(), FitSettings(batch=4))
        assert fast.gated is None
        return
    check_alike(model, branching(), 1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", DEEP)
def test_layers_between_the_first_and_the_last(kind, backend, tmp_path):
    folder = checkpoints.write(tmp_path / kind, kind, **DEEP[kind])
    model = mechheads.load(str(folder), backend=backend, dtype="float64")
    # The norms and positions inside a bridge are computed in float32.
    check_alike(model, branching(), 1e-9 if backend == "hooked" else 1e-5)


@pytest.mark.parametrize("kind", ["gpt2", "neox"])
def test_a_model_of_one_layer(kind, tmp_path):
    layers = {"n_layer": 1} if kind == "gpt2" else {"num_hidden_layers": 1}
    folder = checkpoints.write(tmp_path / kind, kind, **layers)
    check_alike(mechheads.load(str(folder), dtype="float64"), branching())


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_sparse_model(backend, tmp_path):
    folder = checkpoints.write(tmp_path / "sparse", "llama-gqa", num_hidden_layers=3)
    edge_gates.write(folder, torch.randn(3, 4) * 0.1, {"base": "llama-gqa"})
    model = mechheads.load(str(folder), backend=backend, dtype="float64")
    # The norms and positions inside a bridge are computed in float32.
    check_alike(model, branching(), 1e-9 if backend == "hooked" else 1e-5)


@pytest.mark.parametrize("budget", [1, 8, 40, 10_000])
def test_any_budget_gives_the_same(budget, tmp_path):
    folder = checkpoints.write(tmp_path / "gpt2", "gpt2", n_layer=3)
    check_alike(mechheads.load(str(folder), dtype="float64"), branching(), budget=budget)


def test_every_prefix_is_a_node_once():
    rows = [[5, 6, 7], [5, 6, 8, 7], [6, 7], [5, 6, 7, 9]]
    nodes, new = prefixes(rows)
    of_prefix: dict[tuple[int, ...], int] = {}
    for row, own in zip(rows, nodes.tolist(), strict=True):
        assert own[len(row) :] == [-1] * (4 - len(row))
        for i, node in enumerate(own[: len(row)]):
            assert of_prefix.setdefault(tuple(row[: i + 1]), node) == node
    assert sorted(of_prefix.values()) == list(range(8))
    assert nodes[new].tolist() == list(range(8))


def test_shared_prefixes_run_once_and_padding_not_at_all(tiny):
    prompts = branching()
    fast, _ = both_ways(tiny, prompts)
    assert fast.gated is not None
    drawn = fast.gated.draw(torch.arange(len(prompts)))
    whole = [encoder_of(tiny).ids(p.clean + answer)[:-1] for p in prompts for answer in p.answers]
    every = {tuple(ids[: i + 1]) for ids in whole for i in range(len(ids))}
    assert len(drawn.every.at.unique()) == len(every)
    assert len(drawn.every.home) == -(-len(every) // TOGETHER) * TOGETHER
    assert len(every) < sum(map(len, whole))


def test_variants_are_shared_out_evenly():
    for variants in range(1, 23):
        for most in range(1, 9):
            sizes = [some.stop - some.start for some in shared_out(variants, most)]
            assert sum(sizes) == variants
            assert max(sizes) <= most
            assert max(sizes) - min(sizes) <= 1
            assert len(sizes) == -(-variants // most)
            assert [i for some in shared_out(variants, most) for i in range(variants)[some]] == (
                list(range(variants))
            )


def test_work_side_by_side_keeps_order_gradients_and_the_number_of_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for on in (True, False):
            with torch.set_grad_enabled(on):
                found = side_by_side(
                    lambda i: (i, torch.is_grad_enabled(), torch.get_num_threads()), range(7), CPU
                )
            assert found == [(i, on, 1) for i in range(7)]
            assert torch.get_num_threads() == 2
        with pytest.raises(ZeroDivisionError):
            side_by_side(lambda i: 1 // (i - 3), range(7), CPU)
        assert torch.get_num_threads() == 2
        assert side_by_side(lambda _: torch.get_num_threads(), [0], CPU) == [2]
    finally:
        torch.set_num_threads(before)


FIT = """
import sys, torch, mechheads, tasks
from mechheads.scoring.gate_fitting import FitSettings
torch.set_num_threads(2)
model = mechheads.load("mini", backend=sys.argv[1])
prompts = tasks.make("common_sense", model, n=12)
for _ in range(2):
    found = mechheads.fit_gates(model, prompts, FitSettings(seeds=5, updates=3), quiet=True)
    print(found.minus.view(torch.int32).sum().item(), found.losses.view(torch.int32).sum().item())
"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_threads_give_the_same_bytes_every_time(backend):
    run = [sys.executable, "-c", FIT, backend]
    said = [
        subprocess.run(run, check=True, capture_output=True, text=True, env=os.environ).stdout
        for _ in range(2)
    ]
    assert len({line for text in said for line in text.splitlines()}) == 1


def test_a_fit_is_that_of_a_plain_loop_over_prompts(tmp_path):
    """Adam on each seed's own logits, with the loss of a hooked run of every prompt by itself."""
    folder = checkpoints.write(tmp_path / "llama-gqa", "llama-gqa", num_hidden_layers=3)
    model: Any = mechheads.load(str(folder), dtype="float64")
    prompts = branching()
    settings = FitSettings(seeds=3, updates=4, batch=2)
    found = fit_gates(model, prompts, settings, quiet=True)
    plain = replace(
        make_minibatches(model, prompts, settings), engine=HookedEngine(model), gated=None
    )
    for seed in range(3):
        torch.manual_seed(0)
        drawn = torch.rand(3, 4, generator=torch.Generator().manual_seed(seed))
        logits = torch.logit(drawn, eps=1e-6).double().requires_grad_()
        adam = torch.optim.Adam([logits], lr=0.1)
        for update in range(4):
            adam.param_groups[0]["lr"] = 0.1 + update / 3 * (0.01 - 0.1)
            batches = [plain.cut(torch.tensor([i])) for i in plain.drawn(update).tolist()]
            alone = [plain.nll_of(b, logits.sigmoid()[None]).sum() for (b,) in batches]
            loss = torch.stack(alone).sum() / 2
            adam.zero_grad()
            loss.backward()
            assert found.losses[0, seed, update].item() == pytest.approx(loss.item(), rel=1e-6)
            adam.step()
        torch.testing.assert_close(
            found.free[seed], logits.detach().sigmoid(), rtol=1e-6, atol=1e-8
        )
