"""How many floating point operations a sweep over all heads must do, at least.

Counted are the products of the blocks and of the unembedding, two operations per multiplication
and addition: what is done once per head, not the two remembered runs.
"""

from dataclasses import dataclass

from mechheads.models.model import Model


@dataclass(frozen=True)
class Shape:
    """What the count depends on."""

    layers: int
    heads: int
    kv_heads: int
    d_model: int
    d_head: int
    d_mlp: int
    gated: bool
    vocab: int

    @property
    def queries(self) -> int:
        """Queries and the output of all heads, per token."""
        return 4 * self.d_model * self.heads * self.d_head

    @property
    def keys(self) -> int:
        """Keys and values, per token."""
        return 4 * self.d_model * self.kv_heads * self.d_head

    @property
    def mlp(self) -> int:
        """The MLP, per token."""
        return (6 if self.gated else 4) * self.d_model * self.d_mlp

    def attention(self, queries: int, keys: int) -> int:
        """Scores and their sums, of all heads."""
        return 4 * queries * keys * self.heads * self.d_head


def shape_of(model: Model) -> Shape:
    """The sizes of a model."""
    cfg = model.cfg
    return Shape(
        cfg.n_layers,
        cfg.n_heads,
        cfg.n_key_value_heads or cfg.n_heads,
        cfg.d_model,
        cfg.d_head,
        cfg.d_mlp or 0,
        cfg.gated_mlp,
        cfg.d_vocab_out,
    )


def loop(shape: Shape, rows: int, n: int) -> int:
    """A whole forward pass with all logits for every head: TransformerLens's loop."""
    block = n * (shape.queries + shape.keys + shape.mlp) + shape.attention(n, n)
    logits = 2 * n * shape.d_model * shape.vocab
    return shape.layers * shape.heads * rows * (shape.layers * block + logits)


def needed(shape: Shape, rows: int, n: int, first: int, steps: int = 1, answers: int = 2) -> int:
    """What must run for every head: from its layer and the first changed position on."""
    new = n - first
    block = new * (shape.queries + shape.keys + shape.mlp) + shape.attention(new, n)
    last = steps * (shape.queries + shape.mlp) + new * shape.keys + shape.attention(steps, n)
    write = 2 * shape.d_model * shape.d_head
    total = 0
    for layer in range(shape.layers):
        if layer + 1 == shape.layers:
            total += steps * (write + shape.mlp)
        else:
            total += new * (write + shape.mlp) + (shape.layers - layer - 2) * block + last
    logits = 2 * steps * shape.d_model * answers
    return shape.heads * rows * (total + shape.layers * logits)
