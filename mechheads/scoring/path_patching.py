"""Paths from head to head: the direct effect of a sender on what a receiver reads.

Path patching (Wang et al. 2022, Goldowsky-Dill et al. 2023), exact:
1. The sender's z is replaced, and only the receiver's q, k or v sees the resulting difference in
   the residual stream: nothing between them is rerun.
2. The receiver's z is recomputed, and everything after the receiver is rerun.
If the logits are the receiver, the difference is added to the final residual stream.

Edge attribution patching (Syed et al. 2023) estimates all pairs at once: the sender's difference
times the gradient of the metric with respect to what each receiver reads.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechheads import metrics
from mechheads.engine.cached_run import Engine, measure
from mechheads.engine.interventions import SetHead, unchanged
from mechheads.engine.paired_runs import PairedRun, baselines, check_patching, paired_runs
from mechheads.engine.select import budget_for, engine_for
from mechheads.errors import MechheadsError, unknown
from mechheads.heads import name_of, parse
from mechheads.metrics.token import Metric
from mechheads.models.hooks import attention_parts, inputs_of_heads
from mechheads.models.model import Model, model_name, shape_of
from mechheads.models.weights import input_weights, output_weights, through_first_norm
from mechheads.progress import bar
from mechheads.prompts import Prompts
from mechheads.runs.frames import tidy
from mechheads.runs.result import Result

from . import statistics
from .batching import BatchEffects, score_batches
from .direct_logit_attribution import check_writes
from .effects import HeadEffects

if TYPE_CHECKING:
    import pandas as pd

INPUTS = ("q", "k", "v")


@dataclass(frozen=True)
class EdgeEffects(Result):
    """How far each path from a sender to a receiver's input moves the metric, on average.

    Positive: the path helps. Paths that do not exist (the receiver is not in a later layer) are 0.
    """

    task: str
    model: str
    metric: str
    values: Mapping[str, Float[Tensor, "layer head layer head"]]
    errors: Mapping[str, Float[Tensor, "layer head layer head"]]
    settings: Mapping[str, Any] = field(default_factory=dict)

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

    def strongest(self, k: int = 10) -> "pd.DataFrame":
        """The k paths with the largest absolute effects."""
        frame = self.frame()
        order = frame.effect.abs().sort_values(ascending=False, kind="stable").index
        return frame.loc[order[:k]].reset_index(drop=True)


@torch.inference_mode()
def path_patch(
    model: Model,
    prompts: Prompts,
    metric: str | None = None,
    *,
    to: str | tuple[int, int] = "logits",
    part: str = "q",
    direction: str = "noising",
    budget: int | None = None,
    quiet: bool = False,
) -> HeadEffects:
    """Patch the direct path from each head to the logits, or to the input of one later head.

    Args:
        model: what `mechheads.load` returns
        prompts: what `tasks.make` returns
        metric: a name in `mechheads.METRICS`; default: the task's own
        to: "logits", or the receiving head as "L9H6" or (9, 6)
        part: the receiver's input, "q", "k" or "v". Other heads that share its keys and values do
            not see the difference
        direction: "noising" or "denoising"
        budget: tokens per pass, which bounds memory; default: what suits the device
        quiet: show no progress bar

    Returns:
        HeadEffects: the effect of each sender's path; positive means that the path helps. It is 0
        for senders that are not below the receiver. Costs about two blocks and a partial forward
        pass per sender.

    >>> import mechheads, tasks
    >>> model = mechheads.load("mini")
    >>> prompts = tasks.make("ioi", model, n=8)
    >>> found = mechheads.path_patch(model, prompts, to="L3H4", part="q", quiet=True)
    >>> float(found.scores[3].abs().max())  # no path leads down
    0.0
    """
    wanted = metrics.find(metric or prompts.metric)
    check_patching(direction, "corrupt")
    to = _receiver(to)
    last = _check(model, to, part)
    heads = shape_of(model).heads

    def parts() -> Iterator[BatchEffects]:
        engine, size = engine_for(model), budget_for(model, budget)
        with bar(last * heads, "Senders", quiet) as progress:
            for sides in paired_runs(model, engine, prompts, direction, "corrupt", size):
                count = len(sides.batch.pairs)
                clean, corrupt = baselines(model, engine, sides, wanted)
                values = torch.zeros(count, *shape_of(model).grid)
                rows, n = sides.base.shape
                together = max(1, size // (rows * n))
                for layer in range(last):
                    for begin in range(0, heads, together):
                        some = range(begin, min(begin + together, heads))
                        writes = torch.stack([_write(model, sides, layer, head) for head in some])
                        if isinstance(to, str):
                            after = _at_the_end(model, engine, sides, writes, wanted)
                        else:
                            after = _through(model, engine, sides, writes, to, part, wanted)
                        lost = clean - after if direction == "noising" else after - corrupt
                        values[:, layer, begin : begin + len(some)] = lost.T
                        progress.update(len(some) * count / len(prompts))
                yield BatchEffects(sides.batch.pairs, values, clean, corrupt)

    name = to if isinstance(to, str) else f"{name_of(*to)}.{part}"
    settings = {"direction": direction, "to": name}
    return score_batches(model, prompts, "path", wanted, parts(), settings)


def edge_attribution(
    model: Model,
    prompts: Prompts,
    metric: str | None = None,
    *,
    direction: str = "noising",
    budget: int | None = None,
    quiet: bool = False,
) -> EdgeEffects:
    """Estimate the effect of every path from a head to the query, key or value of a later head.

    Args:
        model: what `mechheads.load` returns
        prompts: what `tasks.make` returns
        metric: a name in `mechheads.METRICS` that has a gradient; default: the task's own
        direction: "noising" or "denoising"
        budget: tokens per pass, which bounds memory; default: what suits the device
        quiet: show no progress bar

    Returns:
        EdgeEffects: mean and standard error per path; positive means that the path helps. Costs a
        few forward and backward passes for all paths together (edge attribution patching).

    >>> import mechheads, tasks
    >>> model = mechheads.load("mini")
    >>> prompts = tasks.make("ioi", model, n=8)
    >>> found = mechheads.edge_attribution(model, prompts, quiet=True)
    >>> list(found.strongest(1).columns)
    ['from_layer', 'from_head', 'to_layer', 'to_head', 'input', 'effect', 'se']
    """
    wanted = metrics.find(metric or prompts.metric)
    check_patching(direction, "corrupt")
    _check(model, "logits", "q")
    if not wanted.smooth:
        raise MechheadsError(f"The metric {wanted.name} has no gradient. Use logit_diff.")
    engine, budget = engine_for(model), budget_for(model, budget)
    layers, heads = shape_of(model).grid
    sums = {part: torch.zeros(2, layers, heads, layers, heads) for part in INPUTS}
    sign = -1.0 if direction == "noising" else 1.0
    with bar(len(prompts), "Prompts", quiet) as progress, torch.no_grad():
        for sides in paired_runs(model, engine, prompts, direction, "corrupt", budget):
            batch = sides.batch
            tokens = batch.clean if direction == "noising" else batch.corrupt
            for receiver, part, slopes in _input_slopes(model, sides, tokens, wanted):
                for sender in range(receiver):
                    writes = torch.stack([_write(model, sides, sender, h) for h in range(heads)])
                    rows = torch.einsum("srpd,rphd->rsh", writes, slopes)
                    found = torch.zeros(len(batch.pairs), heads, heads)
                    found.index_add_(0, batch.pair_of.cpu(), sign * rows.float().cpu())
                    sums[part][0, sender, :, receiver] += found.sum(0)
                    sums[part][1, sender, :, receiver] += found.pow(2).sum(0)
            progress.update(len(batch.pairs))
    n = len(prompts)
    means = {part: both[0] / n for part, both in sums.items()}
    errors = {part: statistics.error_from_sums(both[0], both[1], n) for part, both in sums.items()}
    return EdgeEffects(
        prompts.task, model_name(model), wanted.name, means, errors, {"direction": direction}
    )


def _receiver(to: str | tuple[int, int]) -> str | tuple[int, int]:
    """The receiver: "logits", or (layer, head)."""
    if not isinstance(to, str) or to == "logits":
        return to
    try:
        return parse(to)
    except MechheadsError as error:
        raise MechheadsError(f"{error} Or use logits.") from None


def _check(model: Model, to: str | tuple[int, int], part: str) -> int:
    """The number of layers that senders can be in."""
    check_writes(model)
    if part not in INPUTS:
        raise unknown("input", part, INPUTS)
    if isinstance(to, str):
        return shape_of(model).layers
    if not (0 < to[0] < shape_of(model).layers and 0 <= to[1] < shape_of(model).heads):
        raise MechheadsError(
            f"{name_of(*to)} cannot be a receiver. Choose a layer from 1 to "
            f"{shape_of(model).layers - 1} and a head from 0 to {shape_of(model).heads - 1}."
        )
    return to[0]


def _write(
    model: Model, sides: PairedRun, layer: int, head: int
) -> Float[Tensor, "row pos d_model"]:
    """The difference that replacing the head's z makes to the residual stream."""
    assert sides.source is not None
    change = sides.source[layer][:, :, head] - sides.base.z[layer][:, :, head]
    return change @ output_weights(model, layer)[head]


def _at_the_end(
    model: Model,
    engine: Engine,
    sides: PairedRun,
    writes: Float[Tensor, "variant row pos d_model"],
    metric: Metric,
) -> Float[Tensor, "variant batch"]:
    """The metric with the differences added to the final residual stream."""
    end = engine.rerun(sides.base, unchanged(shape_of(model))) + writes[:, :, -sides.base.steps :]
    return measure(model, end, sides.batch, metric)


def _through(
    model: Model,
    engine: Engine,
    sides: PairedRun,
    writes: Float[Tensor, "variant row pos d_model"],
    to: tuple[int, int],
    part: str,
    metric: Metric,
) -> Float[Tensor, "variant batch"]:
    """The metric when one input of the receiver sees the differences."""
    layer, head = to
    entering = sides.base.entering[layer].expand_as(writes)
    seen = attention_parts(model, layer, (entering + writes).flatten(0, 1))
    mixed = attention_parts(model, layer, entering.flatten(0, 1), {part: seen[part]})
    z = mixed["z"][:, :, head].unflatten(0, writes.shape[:2])
    end = engine.rerun(sides.base, SetHead(layer, head, z))
    return measure(model, end, sides.batch, metric)


def _input_slopes(
    model: Model, sides: PairedRun, tokens: Int[Tensor, "row pos"], metric: Metric
) -> Iterator[tuple[int, str, Float[Tensor, "row pos head d_model"]]]:
    """The gradient of the metric with respect to the stream that each head's q, k and v read.

    Yields one layer and part at a time: all of them would not fit in memory.
    """
    with torch.enable_grad():
        end, parts = inputs_of_heads(model, tokens)
        value = measure(model, end[None, :, -sides.base.steps :], sides.batch, metric).sum()
        flat = [layer[part] for part in INPUTS for layer in parts]
        slopes = iter(torch.autograd.grad(value, flat))
    for part in INPUTS:
        for layer in range(shape_of(model).layers):
            weight = input_weights(model, layer, part)
            read = torch.einsum("rphe,hde->hrpd", next(slopes), weight)
            entering = sides.base.entering[layer]
            yield layer, part, through_first_norm(model, layer, entering, read).movedim(0, 2)
