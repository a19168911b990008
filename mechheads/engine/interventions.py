"""The engine: runs prompts again with some heads' z changed, and computes only what changes.

z is a head's output before W_O (`blocks.L.attn.hook_z`).

1. A run of the prompts is remembered: what enters every layer, every head's z, keys and values.
2. An `Edit` says what z becomes, in several variants at once (one head each, or a mask each).
3. A changed run begins at the first edited layer with the z that is remembered there; positions
   before the first changed one stay as remembered; the last layer runs at the end alone; variants
   that are the same up to a layer run once up to there.
4. `measure` unembeds the end of the run, the answers' tokens alone where the metric allows it.

Every method and every curve goes through `Edit`, so that a score and the curve that judges it
cannot disagree on what changing a head means.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechheads.errors import MechheadsError
from mechheads.metrics.token import Metric, answer_tokens, score, score_answers
from mechheads.models.load import Model, attention_inside, rerun, unembed
from mechheads.prompts.batches import Batch

Z = Float[Tensor, "variant row pos head d_head"]
# For each variant its state; for each state after a layer the one before it.
Variants = Int[Tensor, " variant"]
States = Int[Tensor, " state"]
# Tokens (variants x rows x positions) of one pass: what bounds the memory.
BUDGETS = {"cpu": 2048, "cuda": 65536, "mps": 16384}


@dataclass(frozen=True)
class Run:
    """One run, remembered: per layer what enters it, every head's z, and where there are any what
    else later runs can use. Runs that begin here must be the same before position `first`, whatever
    the edit, and are read at their last `steps` positions.
    """

    first: int
    steps: int
    entering: Sequence[Float[Tensor, "row pos d_model"]]
    z: Sequence[Float[Tensor, "row pos head d_head"]]
    keys: Sequence[Float[Tensor, "row pos kv_head d_head"]] = field(default_factory=list)
    values: Sequence[Float[Tensor, "row pos kv_head d_head"]] = field(default_factory=list)
    beside: Sequence[Float[Tensor, "row pos d_model"]] = field(default_factory=list)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and positions."""
        return self.z[0].shape[0], self.z[0].shape[1]


@runtime_checkable
class Edit(Protocol):
    """What z becomes, in so many variants, from layer `start` on."""

    @property
    def variants(self) -> int:
        """How many there are."""
        ...

    @property
    def start(self) -> int:
        """The first layer that it changes."""
        ...

    def touches(self, layer: int) -> bool:
        """Whether the layer's z changes in any variant."""
        ...

    def __call__(self, layer: int, z: Z, where: slice) -> Z:
        """The z of a layer at the positions `where`."""
        ...

    def branch(self, layer: int, state_of: Variants) -> tuple[States, Variants, "Edit"]:
        """Variants that are the same up to and with this layer share a state.

        Given each variant's state before the layer: the states before it that the states after it
        come from, each variant's state after it, and the edit with a variant per state after it.
        """
        ...


def all_apart(edit: "Edit", state_of: Variants) -> tuple[States, Variants, "Edit"]:
    """Every variant has a state of its own."""
    return state_of, torch.arange(edit.variants), edit


@dataclass(frozen=True)
class Replace:
    """z becomes source + keep * (z - source): kept at 1, replaced at 0. Without a source, z * keep.

    With `at`, only that position of each variant changes; with `since`, only positions from it on.
    """

    keep: Float[Tensor, "variant layer head"]
    source: Sequence[Float[Tensor, "row pos head d_head"]] | None = None
    at: Int[Tensor, " variant"] | None = None
    since: int = 0

    @property
    def variants(self) -> int:
        """How many there are."""
        return self.keep.shape[0]

    @property
    def start(self) -> int:
        """The first layer in which any head is not wholly kept."""
        changed = (self.keep != 1).any(0).any(-1).nonzero()
        return int(changed[0]) if len(changed) else self.keep.shape[1] - 1

    def touches(self, layer: int) -> bool:
        """Whether the layer's z changes in any variant."""
        return bool((self.keep[:, layer] != 1).any())

    def __call__(self, layer: int, z: Z, where: slice) -> Z:
        """The z of a layer at the positions `where`."""
        keep = self.keep[:, layer, None, None, :, None].to(z)
        positions = torch.arange(where.start, where.stop, device=z.device)
        if self.at is not None:
            here = (positions == self.at.to(z.device)[:, None])[:, None, :, None, None]
            keep = torch.where(here, keep, 1.0)
        if self.since > where.start:
            keep = torch.where((positions >= self.since)[:, None, None], keep, 1.0)
        if self.source is None:
            return z * keep
        return torch.lerp(self.source[layer][:, where], z, keep)

    def branch(self, layer: int, state_of: Variants) -> tuple[States, Variants, "Edit"]:
        """Variants that have kept the same so far share a state."""
        if self.at is not None or self.keep.requires_grad:
            return all_apart(self, state_of)
        kinds = torch.cat([state_of[:, None].to(self.keep), self.keep[:, layer]], dim=1)
        _, after = kinds.unique(dim=0, return_inverse=True)
        # One variant stands for each state.
        chosen = torch.zeros(int(after.max()) + 1, dtype=torch.long)
        chosen[after] = torch.arange(len(after))
        return state_of[chosen], after, Replace(self.keep[chosen], self.source, since=self.since)


@dataclass(frozen=True)
class Put:
    """One head's z becomes what is given, another for every variant."""

    layer: int
    head: int
    z: Float[Tensor, "variant row pos d_head"]

    @property
    def variants(self) -> int:
        """How many there are."""
        return self.z.shape[0]

    @property
    def start(self) -> int:
        """The head's layer."""
        return self.layer

    def touches(self, layer: int) -> bool:
        """Only the head's layer."""
        return layer == self.layer

    def __call__(self, layer: int, z: Z, where: slice) -> Z:
        """The z of a layer at the positions `where`."""
        return torch.cat(
            [z[..., : self.head, :], self.z[:, :, where, None], z[..., self.head + 1 :, :]], dim=-2
        )

    def branch(self, layer: int, state_of: Variants) -> tuple[States, Variants, Edit]:
        """Every variant is another."""
        return all_apart(self, state_of)


@runtime_checkable
class Engine(Protocol):
    """Something that can remember a run and run it again with an edit."""

    def remember(self, tokens: Int[Tensor, "row pos"], first: int, steps: int) -> Run:
        """Run the tokens once."""
        ...

    def resume(self, run: Run, edit: Edit) -> Float[Tensor, "variant row steps d_model"]:
        """The end of the run as it becomes with the edit."""
        ...

    def begin(
        self, run: Run, entering: Float[Tensor, "row pos d_model"], edit: Edit
    ) -> Float[Tensor, "variant row steps d_model"]:
        """The same, but with another residual stream entering the first layer, from `first` on."""
        ...


@dataclass(frozen=True)
class Plain:
    """Works for every model: its own blocks, with hooks, from the first edited layer on."""

    model: Model

    def remember(self, tokens: Int[Tensor, "row pos"], first: int, steps: int) -> Run:
        """Run the tokens once."""
        entering, z = attention_inside(self.model, tokens)
        return Run(first, steps, entering, z)

    def resume(self, run: Run, edit: Edit) -> Float[Tensor, "variant row steps d_model"]:
        """The end of the run as it becomes with the edit."""
        return self._from(run, edit.start, run.entering[edit.start], edit)

    def begin(
        self, run: Run, entering: Float[Tensor, "row pos d_model"], edit: Edit
    ) -> Float[Tensor, "variant row steps d_model"]:
        """The same, but with another residual stream entering the first layer."""
        return self._from(run, 0, entering, edit)

    def _from(
        self, run: Run, start: int, entering: Float[Tensor, "row pos d_model"], edit: Edit
    ) -> Float[Tensor, "variant row steps d_model"]:
        rows, n = run.shape
        copies = entering.expand(edit.variants, *entering.shape).flatten(0, 1)

        def change(layer: int, z: Float[Tensor, "row pos head d_head"]) -> Tensor:
            variants = z.unflatten(0, (edit.variants, rows))
            return edit(layer, variants, slice(0, n)).flatten(0, 1)

        layers = [i for i in range(start, self.model.cfg.n_layers) if edit.touches(i)]
        end = rerun(self.model, copies, start, layers, change)
        return end[:, -run.steps :].unflatten(0, (edit.variants, rows))


def engine_for(model: Model) -> Engine:
    """The fast engine where it knows the model's blocks and gives the same, else the plain one."""
    from .direct import Fast, unknown_part

    keep_memory()
    if unknown_part(model) is None and _agree(Plain(model), Fast(model)):
        return Fast(model)
    return Plain(model)


def keep_memory() -> None:
    """Let glibc keep what a pass frees for the next one; elsewhere this does nothing.

    It gives blocks back to the system, page by page to be had again, if they are larger than any
    that was freed before, up to 32 MB: so one of that size is freed, unused.
    """
    torch.empty(31 << 20, dtype=torch.uint8)


def budget_for(model: Model, wanted: int | None = None, times: int = 1) -> int:
    """Tokens per pass: those that are wanted, else so many times what suits the model's device."""
    if wanted is not None and wanted < 1:
        raise MechheadsError(f"--budget takes 1 or more tokens per pass, got {wanted}.")
    return wanted or times * BUDGETS.get(model.W_E.device.type, BUDGETS["cpu"])


def measure(
    model: Model, end: Float[Tensor, "variant row steps d_model"], batch: Batch, metric: Metric
) -> Float[Tensor, "variant batch"]:
    """The metric of every prompt from the residual stream at the end of its rows, in float32."""
    return measure_in_full(model, end, batch, metric).float()


def measure_in_full(
    model: Model, end: Float[Tensor, "variant row steps d_model"], batch: Batch, metric: Metric
) -> Float[Tensor, "variant batch"]:
    """The same in the dtype of the model."""
    if metric.relative and batch.steps == 1:
        logits = unembed(model, end, answer_tokens(batch))
        return metric(score_answers(logits[:, :, 0], batch))
    return metric(score(unembed(model, end), batch))


def unchanged(model: Model) -> Replace:
    """The edit that keeps every head: a run resumed with it ends as it was."""
    return Replace(torch.ones(1, model.cfg.n_layers, model.cfg.n_heads))


@contextmanager
def frozen(model: Model) -> Iterator[None]:
    """Inside, no weight wants a gradient, so that a third less is remembered for a backward pass.

    A linear layer remembers what enters it only for the gradient by its weights.
    """
    wanted = [weight for weight in model.parameters() if weight.requires_grad]
    try:
        for weight in wanted:
            weight.requires_grad_(False)
        yield
    finally:
        for weight in wanted:
            weight.requires_grad_(True)


@torch.inference_mode()
def _agree(plain: Plain, fast: Engine) -> bool:
    """Both engines on one edit of a few tokens: the fast one must give the same end."""
    cfg = plain.model.cfg
    one, two = torch.arange(0, 14 * 5, 5).view(2, 1, 7)[:, :, : cfg.n_ctx] % cfg.d_vocab
    two[:, 0] = one[:, 0]
    keep = unchanged(plain.model).keep
    keep[0, 0, 0] = 0.0
    ends = []
    for engine in (plain, fast):
        base, other = (engine.remember(tokens, 1, 1) for tokens in (one, two))
        ends.append(engine.resume(base, Replace(keep, other.z)))
    tolerance = 1e-4 if ends[0].dtype in (torch.float32, torch.float64) else 3e-2
    return bool((ends[0] - ends[1]).abs().max() <= tolerance * ends[0].abs().max())
