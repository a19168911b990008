"""Subsets of edges against brute force: TransformerLens's split inputs, and a loop over edges."""

import pytest
import torch
from pairs import random_pairs

import mechheads
import tasks
from mechheads.engine.edge_subsets import graph_of, measure_edges
from mechheads.engine.head_subsets import keep_only, measure_subsets
from mechheads.errors import MechheadsError
from mechheads.metrics.token import METRICS, score
from mechheads.models.load import load
from mechheads.models.model import encoder_of
from mechheads.prompts.batches import batches

KINDS = ["gpt2", "llama-gqa", "neox"]


def brute_force(model, prompts, kept):
    """The metric of every prompt: one hook per receiver, and in it a loop over its senders.

    `kept` has the names of edges; a receiver's name is the hook of its input, and its head.
    """
    cfg = model.cfg
    values = torch.zeros(len(prompts))
    times = cfg.n_heads // (cfg.n_key_value_heads or cfg.n_heads)
    for batch in batches(encoder_of(model), prompts):
        _, corrupt = model.run_with_cache(batch.corrupt)
        z = {}

        def keep_z(value, hook, z=z):
            z[hook.layer()] = value

        def patched(stream, layers, receiver, corrupt=corrupt, z=z):
            for layer in range(layers):
                for head in range(cfg.n_heads):
                    if ((layer, head), receiver) not in kept:
                        theirs = corrupt[f"blocks.{layer}.attn.hook_z"][:, :, head]
                        change = theirs - z[layer][:, :, head]
                        stream = stream + change @ model.W_O[layer, head]
            return stream

        def split(value, hook):
            value, layer = value.clone(), hook.layer()
            part = hook.name.split("hook_")[1][0]
            for head in range(cfg.n_heads):
                own = head if part == "q" else head // times
                value[:, :, head] = patched(value[:, :, head], layer, (part, layer, own))
            return value

        def mlp(value, hook):
            layers = hook.layer() + (not cfg.parallel_attn_mlp)
            return patched(value, layers, ("mlp", hook.layer(), None))

        def end(value, hook):
            return patched(value, cfg.n_layers, ("logits", None, None))

        hooks = [(f"blocks.{cfg.n_layers - 1}.hook_resid_post", end)]
        for layer in range(cfg.n_layers):
            hooks += [(f"blocks.{layer}.hook_{part}_input", split) for part in "qkv"]
            hooks += [(f"blocks.{layer}.hook_mlp_in", mlp), (f"blocks.{layer}.attn.hook_z", keep_z)]
        logits = model.run_with_hooks(batch.clean, fwd_hooks=hooks)
        values[batch.pairs] = METRICS["logit_diff"](score(logits[:, -batch.steps :], batch)).float()
    return values


@pytest.fixture
def by_hooks():
    """brute_force(model, prompts, kept) with TransformerLens's split inputs switched on."""

    @torch.no_grad()
    def run(model, prompts, kept):
        model.set_use_split_qkv_input(True)
        model.set_use_hook_mlp_in(True)
        model.set_ungroup_grouped_query_attention(model.cfg.n_key_value_heads is not None)
        try:
            return brute_force(model, prompts, kept)
        finally:
            model.set_use_split_qkv_input(False)
            model.set_use_hook_mlp_in(False)
            model.set_ungroup_grouped_query_attention(False)

    return run


def kept_edges(graph, ranks, count):
    """The kept edges as (sender, (part, layer, head)), found by their codes."""
    kept = set()
    for edge in graph.edges.tolist():
        if ranks.flatten()[edge] < count:
            sender, *receiver = graph.ends(edge)
            kept.add((sender, tuple(receiver)))
    return kept


def check(model, prompts, by_hooks, shares, seed=0):
    graph = graph_of(model)
    order = graph.edges[torch.randperm(len(graph.edges), generator=torch.manual_seed(seed))]
    ranks = graph.ranks(order)
    counts = [round(share * len(order)) for share in shares]
    ours = measure_edges(model, prompts, ranks, counts, "logit_diff", quiet=True)
    for count, found in zip(counts, ours, strict=True):
        wanted = by_hooks(model, prompts, kept_edges(graph, ranks, count))
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    assert (ours[0] - ours[-1]).abs().max() > 1e-2
    return ours


@pytest.mark.hooked
@pytest.mark.parametrize("kind", KINDS)
def test_random_edge_sets_equal_a_loop_over_edges(kind, checkpoint, by_hooks):
    model = load(str(checkpoint(kind)))
    check(model, random_pairs(model, 3), by_hooks, [0, 0.3, 0.6, 0.9, 1])


@pytest.mark.hooked
@pytest.mark.parametrize("name", ["mini", "mini-sparse"])
def test_on_mini_too(name, by_hooks):
    model = mechheads.load(name)
    check(model, tasks.make("ioi", model, n=4), by_hooks, [0, 0.5, 0.95, 1])


@pytest.mark.parametrize("kind", [*KINDS, "neox-sequential", "qwen3"])
def test_all_edges_kept_is_the_clean_run(kind, checkpoint):
    model = load(str(checkpoint(kind)))
    prompts, graph = random_pairs(model, 3), graph_of(model)
    (found,) = measure_edges(model, prompts, graph.ranks(graph.edges), [graph.count], quiet=True)
    (batch,) = batches(encoder_of(model), prompts)
    with torch.no_grad():
        logits = model(batch.clean)
    wanted = METRICS["logit_diff"](score(logits[:, -batch.steps :], batch))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "replacement"),
    [
        *(("gpt2", replacement) for replacement in ("corrupt", "zero", "mean", "position_mean")),
        *((kind, "corrupt") for kind in ("llama-gqa", "neox", "neox-sequential")),
    ],
)
def test_all_edges_of_some_heads_are_these_heads_kept(kind, replacement, checkpoint):
    model = load(str(checkpoint(kind)))
    tokens = 2 if kind == "gpt2" else 1
    prompts = random_pairs(model, -2, (9, 9, 7), tokens=tokens)
    graph = graph_of(model)
    for heads in ([], [(1, 2)], [(0, 0), (0, 3), (1, 1)]):
        kept = torch.zeros(graph.senders, graph.receivers, dtype=torch.bool)
        kept[[layer * graph.heads + head for layer, head in heads]] = True
        found = measure_edges(
            model, prompts, (~kept).long(), [1], replacement=replacement, quiet=True
        )
        keep = keep_only(heads, graph.layers, graph.heads)[None]
        wanted = measure_subsets(model, prompts, keep, replacement=replacement, quiet=True)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.hooked
@pytest.mark.parametrize("kind", ["gpt2", "llama-gqa", "neox"])
def test_both_backends_agree(kind, checkpoint):
    found = []
    for backend in ("hooked", "bridge"):
        model = load(str(checkpoint(kind)), backend=backend)
        prompts, graph = random_pairs(model, 3), graph_of(model)
        order = graph.edges[torch.randperm(graph.count, generator=torch.manual_seed(0))]
        counts = [0, 20, 40, graph.count]
        found.append(measure_edges(model, prompts, graph.ranks(order), counts, quiet=True))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


def test_the_budget_changes_nothing(tiny):
    prompts, graph = random_pairs(tiny, 3, (9, 9, 7, 8)), graph_of(tiny)
    ranks = graph.ranks(graph.edges.flip(0))
    whole, small = (
        measure_edges(tiny, prompts, ranks, [0, 7, 20, 40], budget=budget, quiet=True)
        for budget in (None, 16)
    )
    torch.testing.assert_close(whole, small, rtol=1e-4, atol=1e-5)


def test_names_of_edges_say_who_reads(checkpoint):
    model = load(str(checkpoint("llama-gqa")))
    graph = graph_of(model)
    names = [graph.receiver_name(edge) for edge in graph.edges.tolist()]
    assert names[-2:] == ["MLP 1", "logits"]
    assert {"L1H3.q", "L1H0-1.k", "L1H2-3.v", "MLP 0", "logits"} <= set(names)
    assert graph.count == len(names) == len(graph.edges)
    assert not any(name.startswith("L0") for name in names)


@pytest.mark.parametrize("kind", ["gemma2", "olmoe"])
def test_models_whose_blocks_are_unknown_are_refused(kind, checkpoint):
    model = load(str(checkpoint(kind)))
    with pytest.raises(MechheadsError, match=r"cannot be split into edges\. Use heads"):
        graph_of(model)
