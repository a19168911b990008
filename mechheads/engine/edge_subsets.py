"""The metric with subsets of edges kept, and every other edge patched along its path.

1. Both runs are cached. The clean prompt is run again, from the bottom up, with one residual stream
   that holds what embeddings, MLPs and heads write in this run.
2. Each receiver (edge_graph.py) reads that stream, but of a sender whose edge is not kept, it reads
   the write in the corrupted run: the difference is added to this receiver's input alone. Norms are
   applied to the input so patched.
3. What heads and MLPs write follows from what they have read. Embeddings stay those of the clean
   prompt, and what MLPs write reaches everything: only edges that leave a head are patched.

With all edges kept this is the clean run. With all edges of some heads kept and no others, it is
the run in which only these heads are kept (head_subsets.py): the scale of f is the same for both.
ACDC, EAP and MIB cut the edges of embeddings and MLPs too; to them, the empty circuit is the
corrupted run.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechheads import metrics
from mechheads.errors import MechheadsError
from mechheads.metrics import MetricLike
from mechheads.models.hooks import unknown_part
from mechheads.models.model import Model, model_name, shape_of
from mechheads.progress import bar
from mechheads.prompts import Prompts

from .cached_run import measure
from .direct import DirectEngine
from .edge_graph import EdgeGraph, edge_graph
from .paired_runs import PairedRun, check_patching, paired_runs
from .select import budget_for, engine_for

# Numbers that what all heads write may take up in a pass: half a gigabyte.
WRITES = 2**27


@torch.inference_mode()
def measure_edges(
    model: Model,
    prompts: Prompts,
    ranks: Int[Tensor, "sender receiver"],
    counts: Sequence[int],
    metric: MetricLike | None = None,
    *,
    replacement: str = "corrupt",
    budget: int | None = None,
    quiet: bool = False,
) -> Float[Tensor, "count prompt"]:
    """The metric of every prompt with the first n edges kept, for each n in `counts`.

    `ranks` holds every edge's place in a ranking, from 0 (`EdgeGraph.ranks`). Costs two to three
    forward passes for each n. Memory depends on the budget and the size of the model, not on the
    number of prompts.
    """
    wanted = metrics.choose(metric, prompts)
    check_patching("noising", replacement)
    engine, graph = split_engine(model), graph_of(model)
    size = room_for_writes(model, budget)
    values = torch.zeros(len(counts), len(prompts))
    with bar(len(counts), "Sets of edges", quiet) as progress:
        for sides in paired_runs(model, engine, prompts, "noising", replacement, size, wanted):
            rows, n = sides.base.shape
            some = max(1, size // (rows * (n - sides.base.first)))
            for begin in range(0, len(counts), some):
                chosen = counts[begin : begin + some]
                keep = torch.stack([ranks < count for count in chosen])
                end = _end(engine, graph, sides, keep)
                found = measure(model, end, sides.batch, wanted)
                values[begin : begin + some, sides.batch.pairs] = found.to(values.device)
                progress.update(len(chosen) * len(sides.batch.pairs) / len(prompts))
    return values


def split_engine(model: Model) -> DirectEngine:
    """The engine that knows what each head reads, or an error if the model's blocks are unknown."""
    engine = engine_for(model)
    if isinstance(engine, DirectEngine):
        return engine
    part = unknown_part(model) or "blocks that compute something else than their weights say"
    raise MechheadsError(
        f"{model_name(model)} has {part}: what its heads read cannot be split into edges. Use "
        "heads instead of edges (--level heads)."
    )


def graph_of(model: Model) -> EdgeGraph:
    """The edges of a model, or an error if its blocks are unknown."""
    return edge_graph(shape_of(model), split_engine(model).blocks)


def room_for_writes(model: Model, budget: int | None) -> int:
    """Tokens per pass, if what every head writes is held for each of them."""
    shape = shape_of(model)
    return max(1, min(budget_for(model, budget), WRITES // (len(shape.every_head) * shape.d_model)))


def _end(
    engine: DirectEngine,
    graph: EdgeGraph,
    sides: PairedRun,
    keep: Bool[Tensor, "variant sender receiver"],
) -> Float[Tensor, "variant row steps d_model"]:
    """What the logits read at the end of the run in which only these edges are kept."""
    run, count = sides.base, len(keep)
    first, steps = run.first, run.steps
    stream = run.entering[0][None, :, first:]
    stream = stream.expand(count, *stream.shape[1:])
    cut = (~keep).to(stream)
    # What the source's heads write less what those of this run write.
    change = stream.new_zeros(count, graph.senders, *stream.shape[1:])

    def read(columns: slice, senders: int) -> Float[Tensor, "variant receiver row pos d_model"]:
        """What the receivers see: of a cut edge, what its sender writes in the source."""
        added = cut[:, :senders, columns].mT @ change[:, :senders].flatten(2)
        return stream[:, None] + added.unflatten(2, stream.shape[1:])

    for i, block in enumerate(engine.blocks):
        below, last = graph.below(i, "q"), i + 1 == len(engine.blocks)
        seen = read(graph.columns(i, "heads"), below) if i else None
        if last:  # queries, MLP and logits are needed only at the positions that are read
            stream, change = stream[:, :, -steps:], change[:, :, :, -steps:]
        if seen is None:  # nothing has changed yet
            z = run.z[0][None, :, -stream.shape[2] :].expand(count, -1, -1, -1, -1)
        else:
            x = block.attention_input(seen).movedim(1, 0).flatten(1, 2)
            q, k, v = x.split((graph.heads, graph.kv_heads, graph.kv_heads))
            begin = run.shape[1] - stream.shape[2]
            q = block.place_q(block.split(q[:, :, -stream.shape[2] :], block.q), begin)
            k = block.place_k(block.split(k, block.k), first)
            v = block.split(v, block.v)
            if first:
                k, v = (
                    torch.cat([x[:, :first].repeat(count, 1, 1, 1), new], dim=1)
                    for x, new in ((run.keys[i], k), (run.values[i], v))
                )
            z = block.attend(q, k, v).unflatten(0, (count, -1))
        if block.parallel:
            stream_after = stream + block.mlp(read(graph.columns(i, "mlp"), below)[:, 0])
        else:
            stream_after = stream
        theirs = 0 if sides.source is None else sides.source[i][:, -stream.shape[2] :]
        weights = block.out[0].unflatten(0, (graph.heads, -1))
        writes = torch.einsum("vrphe,hed->vhrpd", theirs - z, weights)
        change[:, below : below + graph.heads] = writes
        stream = stream_after + block.write(z)
        if block.has_mlp and not block.parallel:
            senders = graph.below(i, "mlp")
            stream = stream + block.mlp(read(graph.columns(i, "mlp"), senders)[:, 0])
    return read(slice(-1, None), graph.senders)[:, 0]
