"""Path patching: the effect of a head along its paths to chosen receivers.

As in the IOI paper (Wang et al. 2022, arXiv:2211.00593, its appendix on path patching):
1. Both prompts are run and cached. In the run to be changed, the base run, the sender's z is
   replaced by that of the other run, and all other heads are frozen at their z in the base run. The
   MLPs in between are recomputed, as in the paper, or frozen too: then the sender's write is simply
   added to the residual stream.
2. The receivers' q, k or v is recorded in that run. If the logits are the receiver, the metric of
   that run is the result.
3. The base run is repeated with this part of the receivers set to what was recorded. Everything
   else is recomputed, from the lowest receiver up.

Goldowsky-Dill et al. (2023, arXiv:2304.05969) generalize this to any set of paths.
edge_attribution.py estimates the direct paths between all heads at once.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mechheads import metrics
from mechheads.engine.cached_run import CachedRun, Engine, measure
from mechheads.engine.interventions import FrozenHeads, SetHeads, unchanged
from mechheads.engine.paired_runs import PairedRun, baselines, check_patching, paired_runs
from mechheads.engine.select import budget_for, engine_for
from mechheads.errors import MechheadsError, unknown
from mechheads.heads import check_heads, name_of, read_heads
from mechheads.metrics import MetricLike
from mechheads.models.hooks import attention_parts
from mechheads.models.model import Model, encoder_of, shape_of
from mechheads.models.weights import output_weights
from mechheads.progress import bar
from mechheads.prompts import Prompts
from mechheads.prompts.batches import Batch
from mechheads.prompts.encoder import Encoder
from mechheads.prompts.positions import chosen_spans, span_positions

from .batching import BatchEffects, score_batches
from .direct_logit_attribution import check_writes
from .effects import HeadEffects

INPUTS = ("q", "k", "v")
MLPS = ("recompute", "frozen")
# Where senders are changed: None is everywhere.
Positions = str | int | Sequence[str | int] | None
# The heads of each layer, from the bottom up.
ByLayer = Mapping[int, Sequence[int]]


@dataclass(frozen=True)
class Receivers:
    """What sees the sender: one part of these heads, or the logits if there are none."""

    heads: ByLayer
    part: str

    @property
    def name(self) -> str:
        """For example logits, L9H6.q or L9H6.q,L10H0.q."""
        found = [f"{name_of(layer, head)}.{self.part}" for layer, head in _flat(self.heads)]
        return ",".join(found) or "logits"


@torch.inference_mode()
def path_patch(
    model: Model,
    prompts: Prompts,
    metric: MetricLike | None = None,
    *,
    to: str | Any = "logits",
    part: str = "q",
    senders: str | Any | None = None,
    mlps: str = "recompute",
    positions: Positions = None,
    direction: str = "noising",
    budget: int | None = None,
    quiet: bool = False,
) -> HeadEffects:
    """Patch the path from each head to the logits, or to one input of later heads.

    Args:
        model: what `mechheads.load` returns
        prompts: what `tasks.make` returns
        metric: a name in `mechheads.METRICS`, or your own function; default: the task's own
        to: "logits", or the receivers: "L9H6", "L9H6,L9H9,L10H0", (9, 6), a list or a circuit. All
            of them see the sender's difference at once
        part: the receivers' input, "q", "k" or "v". Other heads that share keys and values with a
            receiver do not see the difference
        senders: the heads to patch, written like `to`; default: every head below a receiver
        mlps: "recompute" passes the difference through the MLPs between sender and receivers, as
            the IOI paper does; "frozen" reruns nothing in between: the sender's write is added to
            what the receivers read
        positions: where to change the sender: spans that the task names ("S2", "S2,END"), or tokens
            of the prompt, counted from 0 (BOS included) or, if negative, from its end: [3, -1];
            default: everywhere
        direction: "noising" or "denoising"
        budget: tokens per pass, which bounds memory; default: chosen for the device
        quiet: show no progress bar

    Returns:
        HeadEffects: the effect of each sender's path; positive means that the path helps. It is 0
        for heads that are not below a receiver, and for those that `senders` leaves out. Costs
        about a partial forward pass per sender, and two blocks for each layer with receivers.
        Paths to the logits cost far less: only MLPs run, at the positions that are read.

    >>> import mechheads, tasks
    >>> model = mechheads.load("mini")
    >>> prompts = tasks.make("ioi", model, n=8)
    >>> found = mechheads.path_patch(model, prompts, to="L3H4,L3H6", part="q", quiet=True)
    >>> float(found.scores[3].abs().max())  # no path leads down
    0.0
    """
    wanted = metrics.choose(metric, prompts)
    check_patching(direction, "corrupt")
    if mlps not in MLPS:
        raise unknown("value for mlps:", str(mlps), MLPS)
    if mlps == "frozen":
        check_writes(model)
    receivers = _receivers(model, to, part)
    chosen = _senders(model, senders, receivers)

    def parts() -> Iterator[BatchEffects]:
        engine, size = engine_for(model), budget_for(model, budget)
        with bar(len(_flat(chosen)), "Senders", quiet) as progress:
            for sides in paired_runs(model, engine, prompts, direction, "corrupt", size, wanted):
                count = len(sides.batch.pairs)
                clean, corrupt = baselines(model, engine, sides, wanted)
                where = position_mask(encoder_of(model), prompts, sides.batch, positions)
                if not receivers.heads and not bool(where[:, -sides.batch.steps].any()):
                    raise MechheadsError(
                        "Paths straight to the logits act only at the last token of the prompt. "
                        "Add END to positions, or give receivers with to."
                    )
                values = torch.zeros(count, *shape_of(model).grid)
                rows, n = sides.base.shape
                for layer, some in _chunks(chosen, max(1, size // (rows * n))):
                    change = _changed(sides, where, layer, some)
                    if receivers.heads:
                        end = _through_heads(model, engine, sides.base, change, receivers, mlps)
                    else:
                        end = _to_the_end(model, engine, sides.base, change, mlps)
                    after = measure(model, end, sides.batch, wanted)
                    lost = clean - after if direction == "noising" else after - corrupt
                    values[:, layer, some] = lost.T.to(values.device)
                    progress.update(len(some) * count / len(prompts))
                yield BatchEffects(sides.batch.pairs, values, clean, corrupt)

    settings = {
        "direction": direction,
        "to": receivers.name,
        "senders": "all" if senders is None else ",".join(name_of(*h) for h in _flat(chosen)),
        "mlps": mlps,
        "positions": "all" if positions is None else ",".join(map(str, _listed(positions))),
    }
    return score_batches(model, prompts, "path", wanted, parts(), settings)


def position_mask(
    encoder: Encoder, prompts: Prompts, batch: Batch, positions: Positions
) -> Bool[Tensor, "row pos"]:
    """Where senders are changed: at these positions or spans of the prompts, or everywhere if None.

    Positions count the prompt's tokens, from the end if negative; those of the answers, which
    follow it, are not among them.
    """
    mask = torch.full(batch.clean.shape, positions is None)
    length = batch.prompt_length
    listed = [] if positions is None else _listed(positions)
    if named := [str(name) for name in listed if not _is_number(name)]:
        pairs = [prompts.pairs[i] for i in batch.pairs.tolist()]
        chosen = chosen_spans(prompts, named)
        found = span_positions(encoder, replace(prompts, pairs=tuple(pairs)), chosen)
        for row, pair in enumerate(batch.pair_of.tolist()):
            mask[row, [place for places in found[pair] for place in places]] = True
    for place in (int(name) for name in listed if _is_number(name)):
        if not -length <= place < length:
            raise MechheadsError(
                f"There is no position {place} in a prompt of {length} tokens. Choose from "
                f"{-length} to {length - 1}."
            )
        mask[:, place % length] = True
    return mask


def _listed(positions: Any) -> list[str | int]:
    """The positions one by one; at least one."""
    if isinstance(positions, str):
        positions = [part.strip() for part in positions.split(",") if part.strip()]
    found = list(positions) if isinstance(positions, Iterable) else [positions]
    if not found:
        raise MechheadsError("positions is empty. Give names of spans, or numbers such as 3,-1.")
    return found


def _is_number(name: str | int) -> bool:
    return bool(re.fullmatch(r"[+-]?\d{1,9}", str(name)))


def _receivers(model: Model, to: Any, part: str) -> Receivers:
    """The receivers, if all of them can be one."""
    if part not in INPUTS:
        raise unknown("input", part, INPUTS)
    if isinstance(to, str) and to.strip() == "logits":
        return Receivers({}, part)
    try:
        found = read_heads(to)
    except MechheadsError as error:
        raise MechheadsError(f"{error} Or use logits alone.") from None
    if not found:
        raise MechheadsError("to has no receivers. Give heads such as L9H6,L9H9, or logits.")
    layers, heads = shape_of(model).grid
    for layer, head in found:
        if not (0 < layer < layers and 0 <= head < heads):
            raise MechheadsError(
                f"{name_of(layer, head)} cannot be a receiver. Choose a layer from 1 to "
                f"{layers - 1} and a head from 0 to {heads - 1}."
            )
    return Receivers(_by_layer(found), part)


def _senders(model: Model, senders: Any, receivers: Receivers) -> ByLayer:
    """The chosen senders, or every head below a receiver."""
    shape = shape_of(model)
    top = max(receivers.heads, default=shape.layers)
    if senders is None:
        return {layer: range(shape.heads) for layer in range(top)}
    found = read_heads(senders)
    if not found:
        raise MechheadsError("senders has no heads. Give some such as L0H1,L2H3, or leave it out.")
    check_heads(found, *shape.grid)
    for layer, head in found:
        if layer >= top:
            raise MechheadsError(
                f"{name_of(layer, head)} cannot be a sender: it is below none of the receivers "
                f"({receivers.name}). Choose layers below {top}."
            )
    return _by_layer(found)


def _by_layer(heads: Sequence[tuple[int, int]]) -> ByLayer:
    return {
        layer: sorted({head for own, head in heads if own == layer})
        for layer in sorted({layer for layer, _ in heads})
    }


def _flat(heads: ByLayer) -> list[tuple[int, int]]:
    return [(layer, head) for layer, some in heads.items() for head in some]


def _chunks(heads: ByLayer, most: int) -> Iterator[tuple[int, list[int]]]:
    """At most so many heads of one layer at a time."""
    for layer, every in heads.items():
        for begin in range(0, len(every), most):
            yield layer, list(every[begin : begin + most])


def _changed(
    sides: PairedRun, where: Bool[Tensor, "row pos"], layer: int, heads: list[int]
) -> FrozenHeads:
    """All heads of the base run, but each sender's z is that of the other run at some positions."""
    assert sides.source is not None
    base, other = (z[layer][:, :, heads] for z in (sides.base.z, sides.source))
    z = torch.where(where[:, :, None, None].to(base.device), other, base)
    return FrozenHeads(sides.base.z, layer, heads, z.movedim(2, 0))


def _writes(model: Model, change: FrozenHeads) -> Float[Tensor, "variant row pos d_model"]:
    """The difference that each sender's new z makes to the residual stream."""
    before = change.cached[change.layer][:, :, change.heads].movedim(2, 0)
    weights = output_weights(model, change.layer)[change.heads]
    return torch.einsum("vrpe,ved->vrpd", change.z - before, weights)


def _to_the_end(
    model: Model, engine: Engine, base: CachedRun, change: FrozenHeads, mlps: str
) -> Float[Tensor, "variant row steps d_model"]:
    """The end of the run that sees the senders' differences, with all other heads frozen.

    No position sees another, so only those that are read are run.
    """
    end = slice(-base.steps, None)
    cached = [z[:, end] for z in base.z]
    last = FrozenHeads(cached, change.layer, change.heads, change.z[:, :, end])
    if mlps == "frozen":
        return engine.rerun(base, unchanged(shape_of(model))) + _writes(model, last)
    entering, beside = ([x[:, end] for x in kept] for kept in (base.entering, base.beside))
    return engine.rerun(CachedRun(0, base.steps, entering, cached, beside=beside), last)


def _through_heads(
    model: Model,
    engine: Engine,
    base: CachedRun,
    change: FrozenHeads,
    receivers: Receivers,
    mlps: str,
) -> Float[Tensor, "variant row steps d_model"]:
    """The end of the base run in which one part of the receivers sees the senders' differences."""
    writes = _writes(model, change) if mlps == "frozen" else torch.zeros(())
    set_to: dict[tuple[int, int], Tensor] = {}
    # Two streams go up from receiver to receiver: what these see, and what the base run becomes.
    seen = now = base.entering[change.layer][None]
    at = change.layer
    for layer in [layer for layer in receivers.heads if layer > change.layer]:
        between = range(at, layer)
        if mlps == "frozen":
            seen = base.entering[layer] + writes
        else:
            seen = engine.advance(base, seen, between, change)
        if set_to:
            now = engine.advance(base, now, between, SetHeads(set_to))
        else:
            now = base.entering[layer][None]
        recorded = attention_parts(model, layer, seen.flatten(0, 1))[receivers.part]
        mixed = attention_parts(
            model, layer, now.expand_as(seen).flatten(0, 1), {receivers.part: recorded}
        )
        heads = list(receivers.heads[layer])
        z = mixed["z"][:, :, heads].unflatten(0, seen.shape[:2]).unbind(3)
        set_to |= {(layer, head): values for head, values in zip(heads, z, strict=True)}
        at = layer
    return engine.rerun(base, SetHeads(set_to))
