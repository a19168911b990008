"""A lower bound on the floating-point operations of patching all heads.

It counts the matrix products of the blocks and the unembedding, two operations per multiply-add:
the work done once per head, not the two cached runs.
"""

from dataclasses import dataclass

from mechheads.models.model import Model, encoder_of, mlp_shape, shape_of


@dataclass(frozen=True)
class Sizes:
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
        """Attention scores and weighted sums of values, for all heads."""
        return 4 * queries * keys * self.heads * self.d_head


def sizes_of(model: Model) -> Sizes:
    """The sizes of a model."""
    shape, (width, gated) = shape_of(model), mlp_shape(model)
    return Sizes(
        shape.layers,
        shape.heads,
        shape.kv_heads,
        shape.d_model,
        shape.d_head,
        width,
        gated,
        encoder_of(model).vocabulary,
    )


def loop(sizes: Sizes, rows: int, n: int) -> int:
    """TransformerLens's loop: a full forward pass with all logits for every head."""
    block = n * (sizes.queries + sizes.keys + sizes.mlp) + sizes.attention(n, n)
    logits = 2 * n * sizes.d_model * sizes.vocab
    return sizes.layers * sizes.heads * rows * (sizes.layers * block + logits)


def needed(sizes: Sizes, rows: int, n: int, first: int, steps: int = 1, answers: int = 2) -> int:
    """What must run for every head: everything from its layer and the first changed position on."""
    new = n - first
    block = new * (sizes.queries + sizes.keys + sizes.mlp) + sizes.attention(new, n)
    last = steps * (sizes.queries + sizes.mlp) + new * sizes.keys + sizes.attention(steps, n)
    write = 2 * sizes.d_model * sizes.d_head
    total = 0
    for layer in range(sizes.layers):
        if layer + 1 == sizes.layers:
            total += steps * (write + sizes.mlp)
        else:
            total += new * (write + sizes.mlp) + (sizes.layers - layer - 2) * block + last
    logits = 2 * steps * sizes.d_model * answers
    return sizes.heads * rows * (total + sizes.layers * logits)
