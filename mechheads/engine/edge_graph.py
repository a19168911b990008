"""The edges of a circuit: from each head to everything that reads what it writes.

A sender is a head. A receiver is the query input of a later head, the key or the value input of
later heads (one for all heads that share keys and values), an MLP, or the logits. These edges run
between parts of the model; the query-key pairs of an attention pattern (observe/edges.py) are
another thing.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from mechheads.heads import name_of
from mechheads.models.backends.blocks import Block
from mechheads.models.model import Shape

PARTS = ("q", "k", "v", "mlp")


@dataclass(frozen=True)
class EdgeGraph:
    """Which edges a model has: senders in order, and receivers layer by layer, logits last.

    In a layer: q of every head, k and v of every key-value head, the MLP. `parallel` MLPs read
    what enters their layer, others also what its heads write.
    """

    layers: int
    heads: int
    kv_heads: int
    mlps: bool
    parallel: bool

    def check(self) -> None:
        """Raise a ValueError if a stored graph cannot be one."""
        if min(self.layers, self.heads, self.kv_heads) < 1 or self.heads % self.kv_heads:
            raise ValueError("it has an impossible number of heads")

    @property
    def count(self) -> int:
        """The number of edges."""
        pairs = self.layers * (self.layers - 1) // 2  # of a layer and a later one
        reading = (self.heads + 2 * self.kv_heads + self.mlps) * pairs
        own = self.layers if self.mlps and not self.parallel else 0
        return self.heads * (reading + own + self.layers)

    @property
    def senders(self) -> int:
        """The number of heads."""
        return self.layers * self.heads

    @property
    def width(self) -> int:
        """The number of receivers in a layer."""
        return self.heads + 2 * self.kv_heads + self.mlps

    @property
    def receivers(self) -> int:
        """The number of receivers."""
        return self.layers * self.width + 1

    def columns(self, layer: int, part: str) -> slice:
        """The receivers of a layer that read it as q, k, v or mlp; "heads" is q, k and v."""
        h, kv = self.heads, self.kv_heads
        begin, end = {
            "q": (0, h),
            "k": (h, h + kv),
            "v": (h + kv, h + 2 * kv),
            "heads": (0, h + 2 * kv),
            "mlp": (h + 2 * kv, self.width),
        }[part]
        return slice(layer * self.width + begin, layer * self.width + end)

    def below(self, layer: int, part: str) -> int:
        """How many senders, from the first on, such a receiver of a layer has."""
        with_own = part == "mlp" and not self.parallel
        return (layer + with_own) * self.heads

    @cached_property
    def exists(self) -> Bool[Tensor, "sender receiver"]:
        """Whether a sender can reach a receiver."""
        found = torch.zeros(self.senders, self.receivers, dtype=torch.bool)
        found[:, -1] = True
        for layer in range(self.layers):
            for part in PARTS:
                found[: self.below(layer, part), self.columns(layer, part)] = True
        return found

    @cached_property
    def edges(self) -> Int[Tensor, " edge"]:
        """All edges in order, as sender * receivers + receiver."""
        return self.exists.flatten().nonzero()[:, 0]

    def ranks(self, order: Int[Tensor, " edge"]) -> Int[Tensor, "sender receiver"]:
        """The place of every edge in an order of edges; those that are not in it come last."""
        found = torch.full((self.senders * self.receivers,), self.count)
        found[order] = torch.arange(len(order))
        return found.unflatten(0, (self.senders, self.receivers))

    def in_order(self, ranks: Int[Tensor, "sender receiver"]) -> Int[Tensor, " edge"]:
        """The order of edges that has these ranks."""
        return ranks.flatten().argsort(stable=True)[: self.count]

    def ends(self, edge: int) -> tuple[tuple[int, int], str, int | None, int | None]:
        """The sending head, and the part, layer and (key-value) head of the receiver, if any."""
        sender, receiver = divmod(edge, self.receivers)
        head = divmod(sender, self.heads)
        layer, column = divmod(receiver, self.width)
        if receiver == self.receivers - 1:
            return head, "logits", None, None
        for part in PARTS:
            columns = self.columns(0, part)
            if columns.start <= column < columns.stop:
                return head, part, layer, None if part == "mlp" else column - columns.start
        raise IndexError(edge)

    def receiver_name(self, edge: int) -> str:
        """For example L3H4.q, L5H0-2.k (heads that share their keys), MLP 5 or logits."""
        _, part, layer, head = self.ends(edge)
        if layer is None:
            return "logits"
        if head is None:
            return f"MLP {layer}"
        times = 1 if part == "q" else self.heads // self.kv_heads
        last = f"-{(head + 1) * times - 1}" if times > 1 else ""
        return f"{name_of(layer, head * times)}{last}.{part}"


def edge_graph(shape: Shape, blocks: list[Block]) -> EdgeGraph:
    """The edges of a model with these blocks."""
    return EdgeGraph(*shape.grid, shape.kv_heads, blocks[0].has_mlp, blocks[0].parallel)
