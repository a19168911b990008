"""How a known model is described: what every head looks for, and what it copies.

The residual stream has named axes: "token a" is 1 where the token is a, "place 3" at position 3,
"one" everywhere. Heads write to further axes; what "say a" ends with is the logit of a.
"""

from dataclasses import dataclass

BEGIN, UNKNOWN = "<bos>", "<unk>"
ONE = "one"

# (query axis, key axis, score): how strongly a query looks at a key.
Look = tuple[str, str, float]
# (axis read at the key, axis written at the query, weight).
Copy = tuple[str, str, float]


@dataclass(frozen=True)
class Head:
    """An attention head; scores add up before the softmax, and `role` is empty if it is idle.

    Without `looks` it attends to all positions equally, without `copies` it writes nothing.
    """

    role: str = ""
    looks: tuple[Look, ...] = ()
    copies: tuple[Copy, ...] = ()


@dataclass(frozen=True)
class KnownDesign:
    """A model without MLPs: its words, and its heads by layer."""

    name: str
    summary: str
    words: tuple[str, ...]
    layers: tuple[tuple[Head, ...], ...]
    positions: int = 32

    @property
    def short(self) -> str:
        """The model's name in titles and sentences."""
        return f"known-{self.name}"

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The tokens, by their ids."""
        return (BEGIN, UNKNOWN, *self.words)

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes of the residual stream, in a fixed order."""
        begin = [ONE, *(token(word) for word in self.vocabulary)]
        begin += [place(i) for i in range(self.positions)]
        written = [to for layer in self.layers for head in layer for _, to, _ in head.copies]
        return tuple(dict.fromkeys([*begin, *written, *(say(word) for word in self.words)]))

    @property
    def roles(self) -> dict[tuple[int, int], str]:
        """The heads that are not idle, and what they do."""
        every = (
            (i, j, head) for i, layer in enumerate(self.layers) for j, head in enumerate(layer)
        )
        return {(i, j): head.role for i, j, head in every if head.role}

    @property
    def grid(self) -> tuple[int, int]:
        """Layers and heads."""
        return len(self.layers), len(self.layers[0])


def token(word: str) -> str:
    """The axis of a token."""
    return f"token {word}"


def place(position: int) -> str:
    """The axis of a position."""
    return f"place {position}"


def say(word: str) -> str:
    """The axis of a logit."""
    return f"say {word}"
