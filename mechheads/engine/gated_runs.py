"""Runs of the same prompts with other gates again and again, each distinct prefix once.

1. A node is a position of a prompt and all tokens up to it. A causal model computes the same at a
   node whichever prompts share it, so norms, weights and MLPs run once per node, for prompts of any
   length together. Only attention runs per prompt: queries, keys and values are copied to rows.
2. The first layer's attention does not depend on gates: what its heads write is computed once.
3. In the last layer, queries and MLP are computed only at nodes that are read.
4. Variants (the gates of several fits) are computed together, as further rows of each product.

The result is that of the direct engine with `Replace(gates)`, to rounding.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechheads import metrics
from mechheads.metrics import Scores
from mechheads.models.hooks import embed, unembed
from mechheads.models.model import Model, encoder_of
from mechheads.prompts.batches import Batch

from .direct import DirectEngine, after_heads

ABSENT = -1


@dataclass(frozen=True)
class Layout:
    """Where nodes lie in rows: `at` is the node of each position, 0 where there is none.

    `home` is, for each node, a place in the flattened rows that has it. Rows begin at position
    `begin`.
    """

    at: Int[Tensor, "row pos"]
    home: Int[Tensor, " node"]
    begin: int = 0

    def spread(self, x: Float[Tensor, "variant node *rest"]) -> Float[Tensor, "copy pos *rest"]:
        """Every row's values, from those of the nodes; a row per variant and row."""
        found = _taken(x.flatten(2), self.at.flatten())
        return found.view(len(x) * len(self.at), self.at.shape[1], *x.shape[2:])

    def gather(
        self, x: Float[Tensor, "copy pos *rest"], variants: int
    ) -> Float[Tensor, "variant node *rest"]:
        """Every node's values, from those of the rows."""
        found = _taken(x.reshape(variants, self.at.numel(), -1), self.home)
        return found.view(variants, len(self.home), *x.shape[2:])


@dataclass(frozen=True)
class Drawn:
    """Some of the prompts, ready to run.

    `every` lays out all nodes and `read` those that are read, for the queries of the last layer.
    `start` leaves the first layer's attention if all its gates are closed, and `heads` is what each
    of its heads adds. Answer tokens are read at node `reads[slot]` and belong to answer `cell`.
    """

    pairs: Int[Tensor, " prompt"]
    every: Layout
    read: Layout
    reads: Int[Tensor, " read"]
    start: Float[Tensor, "node d_model"]
    heads: Float[Tensor, "head node d_model"]
    slot: Int[Tensor, " token"]
    token: Int[Tensor, " token"]
    cell: Int[Tensor, " token"]
    choices: Int[Tensor, "prompt choice steps"]
    right: Bool[Tensor, "prompt choice"]


class GatedRuns:
    """All prompts of a fit, with what enters the first layer and every z in it, by node."""

    @torch.no_grad()
    def __init__(
        self, model: Model, engine: DirectEngine, batches: Sequence[Batch], budget: int
    ) -> None:
        """Run the first layer's attention on all prompts, at most `budget` tokens at a time."""
        self.model, self.blocks = model, engine.blocks
        self.pair_of = torch.cat([batch.pairs[batch.pair_of] for batch in batches])
        self.nodes, new = prefixes([row for batch in batches for row in batch.clean.tolist()])
        self._read_answers(batches)
        entering, z, beside = [], [], []
        begun, block = 0, self.blocks[0]
        for batch in batches:
            for tokens in batch.clean.split(max(1, budget // batch.length)):
                own = new[begun : begun + len(tokens), : batch.length]
                begun += len(tokens)
                residual = embed(model, tokens)
                own = own.to(residual.device)
                x = block.attention_input(residual)
                found = block.attend(block.queries(x, 0), *block.keys_values(x, 0))
                entering.append(residual[own])
                z.append(found[own])
                if block.parallel:
                    beside.append(block.mlp(residual)[own])
        self.start = torch.cat(entering) + block.out[1]
        if beside:
            self.start = self.start + torch.cat(beside)
        self.z = torch.cat(z)
        # Continuations are padded to one length: nothing after the last read position is needed.
        read = torch.isin(self.nodes, self.read_at[self.read_at >= 0])
        self.nodes = self.nodes.where(read.flip(1).cumsum(1).flip(1) > 0, ABSENT)

    def __len__(self) -> int:
        """The number of prompts."""
        return len(self.right)

    def _read_answers(self, batches: Sequence[Batch]) -> None:
        """By prompt: the tokens of its answers, the node that each is read at, which are right."""
        width = max(batch.choices.shape[1] for batch in batches)
        steps = max(batch.steps for batch in batches)
        size, begun = sum(len(batch.pairs) for batch in batches), 0
        self.choices = torch.full((size, width, steps), ABSENT)
        self.read_at = self.choices.clone()
        self.right = torch.zeros((size, width), dtype=torch.bool)
        for batch in batches:
            _, choices, own = batch.choices.shape
            rows = self.nodes[begun : begun + len(batch.clean)]
            begun += len(batch.clean)
            at = rows[:, batch.length - own : batch.length][batch.row_of]
            self.choices[batch.pairs, :choices, :own] = batch.choices
            self.read_at[batch.pairs, :choices, :own] = at.where(batch.choices >= 0, ABSENT)
            self.right[batch.pairs, :choices] = batch.right

    def draw(self, pairs: Int[Tensor, " prompt"]) -> Drawn:
        """Lay out some of the prompts."""
        ids = self.nodes[torch.isin(self.pair_of, pairs)]
        ids = ids[:, : int((ids >= 0).sum(1).max())]
        known = ids[ids >= 0].unique()
        present = self.choices[pairs] >= 0
        of_token = self.read_at[pairs][present]
        reads, slot = of_token.unique(return_inverse=True)
        begin = int((ids[..., None] == reads).any(-1).any(0).nonzero()[0])
        cells = torch.arange(present[..., 0].numel()).view(present.shape[:2])
        place, block = self.z.device, self.blocks[0]
        held = (reads if len(self.blocks) == 1 else known).to(place)
        weights = block.out[0].unflatten(0, (-1, block.d_head)).detach()
        return Drawn(
            pairs,
            _layout(ids, known, 0, place),
            _layout(ids[:, begin:], reads, begin, place),
            torch.searchsorted(known, reads).to(place),
            self.start[held],
            torch.bmm(self.z[held].transpose(0, 1), weights),
            slot.to(place),
            self.choices[pairs][present].to(place),
            cells[:, :, None].expand_as(present)[present].to(place),
            self.choices[pairs],
            self.right[pairs],
        )

    def cost(self, drawn: Drawn) -> int:
        """Memory of a variant in a pass with gradients, in tokens of a pass without."""
        return self._cost(len(drawn.every.home), len(drawn.reads))

    def groups(self, pairs: Int[Tensor, " prompt"], budget: int) -> list[Int[Tensor, " some"]]:
        """The prompts in groups whose cost is at most `budget`, unless one alone has more."""
        groups: list[list[int]] = []
        held = 0
        for pair in pairs.tolist():
            own = self._cost(
                int((self.nodes[self.pair_of == pair] >= 0).sum()),
                int((self.choices[pair] >= 0).sum()),
            )
            if not groups or held + own > budget:
                groups.append([])
                held = 0
            groups[-1].append(pair)
            held += own
        return [torch.tensor(group) for group in groups]

    def _cost(self, nodes: int, reads: int) -> int:
        layers = max(1.0, len(self.blocks) / 6)
        return math.ceil(layers * nodes + reads * encoder_of(self.model).vocabulary / 4096)

    def nll(
        self, drawn: Drawn, gates: Float[Tensor, "variant layer head"]
    ) -> Float[Tensor, "variant prompt"]:
        """Negative log probability per token of every prompt's target."""
        logits = unembed(self.model, self.end(drawn, gates))
        logits = logits if logits.dtype == torch.float64 else logits.float()
        said = logits[:, drawn.slot, drawn.token] - logits.logsumexp(-1)[:, drawn.slot]
        answers = said.new_zeros(len(said), drawn.right.numel()).index_add(1, drawn.cell, said)
        real = drawn.choices[:, :, 0] >= 0
        logprob = answers.cpu().unflatten(1, drawn.right.shape).where(real, -torch.inf)
        greedy = torch.zeros_like(logprob, dtype=torch.bool)
        scores = Scores(logprob, greedy, drawn.right, real, drawn.choices[:, :, 0])
        lengths = (drawn.choices >= 0).sum(-1) * drawn.right
        return -metrics.find("logprob")(scores) * drawn.right.sum(-1) / lengths.sum(-1)

    def end(
        self, drawn: Drawn, gates: Float[Tensor, "variant layer head"]
    ) -> Float[Tensor, "variant read d_model"]:
        """The residual stream after the last layer, at the nodes that are read."""
        gates = gates.to(drawn.start)
        residual = torch.addmm(drawn.start.flatten(), gates[:, 0], drawn.heads.flatten(1))
        residual = residual.view(len(gates), *drawn.start.shape)
        if self.blocks[0].has_mlp and not self.blocks[0].parallel:
            residual = residual + self.blocks[0].mlp(residual)
        for i, block in enumerate(self.blocks[1:], start=1):
            x = block.attention_input(residual)
            keys, values = block.raw(x, block.k), block.raw(x, block.v)
            queries = drawn.every
            if i + 1 == len(self.blocks):
                queries = drawn.read
                x, residual = _taken(x, drawn.reads), _taken(residual, drawn.reads)
            z = block.attend(
                block.place_q(queries.spread(block.raw(x, block.q)), queries.begin),
                block.place_k(drawn.every.spread(keys), 0),
                drawn.every.spread(values),
            )
            z = queries.gather(z, len(gates)) * gates[:, i, None, :, None]
            beside = residual + block.mlp(residual) if block.parallel else residual
            residual = after_heads(block, beside, z)
        return residual


def prefixes(
    rows: Sequence[Sequence[int]],
) -> tuple[Int[Tensor, "row pos"], Bool[Tensor, "row pos"]]:
    """The node of every position, counted as they first appear; -1 after the end of a row.

    And whether it is the first position with that node.
    """
    seen: dict[tuple[int, int], int] = {}
    width = max(map(len, rows))
    nodes = torch.full((len(rows), width), ABSENT)
    new = torch.zeros((len(rows), width), dtype=torch.bool)
    for r, row in enumerate(rows):
        own, before = [], len(seen)
        node = ABSENT
        for token in row:
            node = seen.setdefault((node, token), len(seen))
            own.append(node)
        nodes[r, : len(row)] = torch.tensor(own)
        new[r, : len(row)] = nodes[r, : len(row)] >= before
    return nodes, new


def _layout(
    ids: Int[Tensor, "row pos"], known: Int[Tensor, " node"], begin: int, place: torch.device
) -> Layout:
    """Where the known nodes (sorted) lie in rows of node ids."""
    inside = torch.isin(ids, known)
    at = torch.searchsorted(known, ids.contiguous()).where(inside, 0)
    places = inside.flatten().nonzero()[:, 0]
    home = torch.full((len(known),), ids.numel())
    home.scatter_reduce_(0, at.flatten()[places], places, "amin")
    return Layout(at.to(place), home.to(place), begin)


def _taken(
    x: Float[Tensor, "variant node width"], at: Int[Tensor, " place"]
) -> Float[Tensor, "variant place width"]:
    """x[:, at], as one copy of whole rows."""
    variants, nodes, _ = x.shape
    apart = torch.arange(variants, device=at.device)[:, None] * nodes
    return x.flatten(0, 1).index_select(0, (apart + at).flatten()).unflatten(0, (variants, -1))
