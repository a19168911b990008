"""Edge attribution patching (Syed et al. 2023): the effects of all edges between heads at once.

1. What replacing a sender's z would add to the residual stream is its write.
2. An edge's effect is estimated as that write times the gradient of the metric with respect to what
   the receiver reads: the query, key or value input of a later head, an MLP, or the logits.
3. With steps, the gradient is averaged over inputs between the corrupted and the clean prompt
   (EAP-IG, Hanna et al. 2024, arXiv:2403.17806), which helps where it vanishes at one end.
Exact effects of single paths are in path_patching.py; circuits/edges measures sets of edges.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads import metrics
from mechheads.engine.cached_run import measure
from mechheads.engine.direct import DirectEngine
from mechheads.engine.edge_graph import EdgeGraph
from mechheads.engine.edge_subsets import room_for_writes, split_engine
from mechheads.engine.paired_runs import PairedRun, check_patching, paired_runs
from mechheads.engine.select import frozen
from mechheads.errors import MechheadsError
from mechheads.heads import name_of
from mechheads.metrics import Metric, MetricLike
from mechheads.models.hooks import embed
from mechheads.models.model import Model, model_name, shape_of
from mechheads.models.weights import output_weights
from mechheads.progress import bar
from mechheads.prompts import Prompts
from mechheads.prompts.batches import Batch
from mechheads.runs.frames import tidy
from mechheads.runs.result import Result

from . import statistics
from .attribution_patching import check_gradient
from .direct_logit_attribution import check_writes

if TYPE_CHECKING:
    import pandas as pd

INPUTS = ("q", "k", "v")


@dataclass(frozen=True)
class EdgeEffects(Result):
    """How far each path from a sender to a receiver's input moves the metric, on average.

    Positive: the path helps. Paths that do not exist (the receiver is not in a later layer) are 0.
    `logits` are the direct paths from each head to the logits, `mlps` those to the MLP of each
    layer; older files have none.
    """

    task: str
    model: str
    metric: str
    values: Mapping[str, Float[Tensor, "layer head layer head"]]
    errors: Mapping[str, Float[Tensor, "layer head layer head"]]
    settings: Mapping[str, Any] = field(default_factory=dict)
    logits: Float[Tensor, "layer head"] | None = None
    mlps: Float[Tensor, "layer head layer"] | None = None

    def check(self) -> None:
        """Raise a ValueError if stored effects cannot be ours."""
        if not self.values or set(self.values) != set(self.errors):
            raise ValueError("it has edges without effects or standard errors")

    def frame(self) -> "pd.DataFrame":
        """A tidy frame: from_layer, from_head, to_layer, to_head, input, effect, se."""
        import pandas as pd

        parts = []
        for part, values in self.values.items():
            names = ("from_layer", "from_head", "to_layer", "to_head")
            table = tidy(names, {"effect": values, "se": self.errors[part]})
            table.insert(4, "input", part)
            parts.append(table[table.from_layer < table.to_layer])
        return pd.concat(parts, ignore_index=True)

    @property
    def headline(self) -> dict[str, Any]:
        """The strongest path."""
        row: Any = self.strongest(1).to_dict("records")[0]
        sender = name_of(row["from_layer"], row["from_head"])
        receiver = name_of(row["to_layer"], row["to_head"])
        return {"strongest": f"{sender} to {receiver}.{row['input']}", "effect": row["effect"]}

    @property
    def sentence(self) -> str:
        """The headline as a sentence."""
        found = self.headline
        return (
            f"{self.task} on {self.model}: the strongest path between heads is "
            f"{found['strongest']} ({found['effect']:+.4f}, estimated)."
        )

    def by_receiver(self, graph: EdgeGraph) -> Float[Tensor, "sender receiver"]:
        """The effects in the order of a graph; heads that share keys or values are one receiver."""
        found = torch.zeros(graph.senders, graph.receivers)
        for layer in range(graph.layers):
            for part in INPUTS:
                effects = self.values[part][:, :, layer].flatten(0, 1)
                columns = graph.columns(layer, part)
                effects = effects.unflatten(1, (columns.stop - columns.start, -1))
                found[:, columns] = effects.sum(-1)
            if graph.mlps and self.mlps is not None:
                found[:, graph.columns(layer, "mlp")] = self.mlps[:, :, layer].flatten()[:, None]
        if self.logits is not None:
            found[:, -1] = self.logits.flatten()
        return found

    def strongest(self, k: int = 10) -> "pd.DataFrame":
        """The k paths with the largest absolute effects."""
        frame = self.frame()
        order = frame.effect.abs().sort_values(ascending=False, kind="stable").index
        return frame.loc[order[:k]].reset_index(drop=True)


@torch.no_grad()
def edge_attribution(
    model: Model,
    prompts: Prompts,
    metric: MetricLike | None = None,
    *,
    direction: str = "noising",
    steps: int = 0,
    budget: int | None = None,
    quiet: bool = False,
) -> EdgeEffects:
    """Estimate the effect of every path from a head to a later head's query, key or value.

    The direct paths to the logits and to MLPs are estimated too, in `logits` and `mlps`.

    Args:
        model: what `mechheads.load` returns
        prompts: what `tasks.make` returns
        metric: a name in `mechheads.METRICS` that has a gradient; default: the task's own
        direction: "noising" or "denoising"
        steps: 0 takes the gradient at the run that is changed; more average it over so many inputs
            between the corrupted and the clean prompt (integrated gradients; EAP-IG uses 5)
        budget: tokens per pass, which bounds memory; default: chosen for the device
        quiet: show no progress bar

    Returns:
        EdgeEffects: mean and standard error per path; positive means that the path helps. Costs two
        forward passes, and a forward and a backward pass per step, for all paths together.

    >>> import mechheads, tasks
    >>> model = mechheads.load("mini")
    >>> prompts = tasks.make("ioi", model, n=8)
    >>> found = mechheads.edge_attribution(model, prompts, quiet=True)
    >>> list(found.strongest(1).columns)
    ['from_layer', 'from_head', 'to_layer', 'to_head', 'input', 'effect', 'se']
    """
    wanted = metrics.choose(metric, prompts)
    check_patching(direction, "corrupt")
    check_writes(model)
    if steps < 0:
        raise MechheadsError(f"steps takes 0 or more, got {steps}.")
    check_gradient(wanted, "" if steps else direction)
    engine, size = split_engine(model), room_for_writes(model, budget)
    shape, n = shape_of(model), len(prompts)
    layers, heads = shape.grid
    # Of every receiver: q, k and v of each head, and the MLP of each layer; then the logits.
    sums = torch.zeros(2, layers * heads, layers * (3 * heads + 1) + 1, dtype=torch.double)
    sign = -1.0 if direction == "noising" else 1.0
    with bar(n, "Prompts", quiet) as progress, frozen(model):
        for sides in paired_runs(model, engine, prompts, direction, "corrupt", size, wanted):
            writes = _writes(model, sides)
            found = torch.zeros(len(sides.batch.pair_of), *sums.shape[1:])
            inputs = _inputs(model, sides.batch, direction, steps)
            for entering in inputs:
                for column, senders, slopes in _slopes(engine, sides.batch, entering, wanted):
                    read = slopes[:, :, sides.base.first :].flatten(2)
                    effects = writes[:, :senders].flatten(2) @ read.mT
                    found[:, :senders, column : column + slopes.shape[1]] += effects.float().cpu()
            joined = torch.zeros(len(sides.batch.pairs), *sums.shape[1:])
            joined.index_add_(0, sides.batch.pair_of.cpu(), sign * found / len(inputs))
            sums += torch.stack([joined.double().sum(0), joined.double().pow(2).sum(0)])
            progress.update(len(sides.batch.pairs))
    means = sums[0] / n
    tables = [means, statistics.error_from_sums(sums[0], sums[1], n)]
    means, errors = (x.float().unflatten(0, (layers, heads)) for x in tables)
    return EdgeEffects(
        prompts.task,
        model_name(model),
        wanted.name,
        _by_input(means, heads),
        _by_input(errors, heads),
        {"direction": direction, "steps": steps},
        means[:, :, -1].clone(),
        means[:, :, 3 * heads : -1 : 3 * heads + 1].clone(),
    )


def _by_input(
    x: Float[Tensor, "layer head receiver"], heads: int
) -> dict[str, Float[Tensor, "layer head layer head"]]:
    """The columns of the queries, keys and values of all heads."""
    of_heads = x[:, :, :-1].unflatten(2, (-1, 3 * heads + 1))[..., :-1]
    return {
        part: columns.clone()
        for part, columns in zip(INPUTS, of_heads.split(heads, dim=3), strict=True)
    }


def _inputs(model: Model, batch: Batch, direction: str, steps: int) -> list[Tensor]:
    """What enters the first layer of the runs whose gradients are averaged."""
    if not steps:
        return [embed(model, batch.clean if direction == "noising" else batch.corrupt)]
    near, far = embed(model, batch.corrupt), embed(model, batch.clean)
    return [torch.lerp(near, far, (i + 0.5) / steps) for i in range(steps)]


def _writes(model: Model, sides: PairedRun) -> Float[Tensor, "row sender pos d_model"]:
    """The difference that replacing each head's z makes to the residual stream."""
    assert sides.source is not None
    found = []
    for layer, (theirs, ours) in enumerate(zip(sides.source, sides.base.z, strict=True)):
        change = (theirs - ours)[:, sides.base.first :]
        found.append(torch.einsum("rphe,hed->rhpd", change, output_weights(model, layer)))
    return torch.cat(found, dim=1)


def _slopes(
    engine: DirectEngine, batch: Batch, entering: Float[Tensor, "row pos d_model"], metric: Metric
) -> Iterator[tuple[int, int, Float[Tensor, "row receiver pos d_model"]]]:
    """The gradient of the metric with respect to what each receiver reads, layer by layer.

    Yields the first receiver's column, and how many senders these receivers have. Only one layer's
    gradients are held at a time.
    """
    heads: list[list[Tensor]] = []
    mlps: list[Tensor] = []
    seen: list[Tensor] = []
    with torch.enable_grad():
        residual = entering.detach().requires_grad_()
        for block in engine.blocks:
            seen.append(residual.detach())
            x = block.attention_input(residual)
            q = block.raw(x, block.q)
            # Heads that share keys and values get a copy each, to be told apart.
            times = q.shape[2] // (block.k[0].shape[1] // block.d_head)
            k, v = (block.raw(x, w).repeat_interleave(times, 2) for w in (block.k, block.v))
            heads.append([q, k, v])
            z = block.attend(block.place_q(q, 0), block.place_k(k, 0), v)
            written = residual + block.write(z)
            if block.has_mlp:
                mlps.append((residual if block.parallel else written).clone())
                written = written + block.mlp(mlps[-1])
            residual = written
        value = measure(engine.model, residual[None, :, -batch.steps :], batch, metric).sum()
        flat = [part for parts in heads for part in parts]
        last, *rest = torch.autograd.grad(value, [residual, *flat, *mlps])
    by_head, by_mlp = iter(rest[: len(flat)]), rest[len(flat) :]
    count = heads[0][0].shape[2]
    for layer, block in enumerate(engine.blocks):
        column, below = layer * (3 * count + 1), layer * count
        read = []
        for weights in (block.q, block.k, block.v):
            each = weights[0].unflatten(1, (-1, block.d_head))
            each = each.repeat_interleave(count // each.shape[1], dim=1)
            read.append(torch.einsum("rphe,dhe->hrpd", next(by_head), each))
        pull: Any = torch.func.vjp(block.attention_input, seen[layer])[1]
        yield column, below, torch.vmap(pull)(torch.cat(read))[0].movedim(0, 1)
        if block.has_mlp:
            senders = below if block.parallel else below + count
            yield column + 3 * count, senders, by_mlp[layer][:, None]
    layers = len(engine.blocks)
    yield layers * (3 * count + 1), layers * count, last[:, None]
