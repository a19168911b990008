"""Heads by name: L9H6 is head 6 of layer 9, both counted from 0."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from mechheads.errors import MechheadsError, shown


def name_of(layer: int, head: int) -> str:
    """name_of(9, 6) is L9H6."""
    return f"L{layer}H{head}"


def parse(text: str) -> tuple[int, int]:
    """parse("L9H6") is (9, 6); an error says how heads are written."""
    found = re.fullmatch(r"[lL](\d{1,9})[hH](\d{1,9})", text.strip())
    if not found:
        raise MechheadsError(
            f"{shown(text)} is not a head. Heads are written L9H6: layer 9, head 6."
        )
    return int(found[1]), int(found[2])


def read_heads(heads: Any) -> list[tuple[int, int]]:
    """Heads in any spelling, as (layer, head).

    "L9H6", "L9H6,L9H9", (9, 6), a list or array of either, or anything with `heads`, such as a
    circuit.
    """
    heads = getattr(heads, "circuit", heads)  # a discovery's own
    heads = getattr(heads, "heads", heads)
    if "name" in getattr(heads, "columns", ()):  # rows of `effects.top(k)`
        heads = list(heads["name"])
    if hasattr(heads, "tolist"):  # what torch.nonzero and numpy.argwhere give
        heads = heads.tolist()
    if isinstance(heads, str):
        return [parse(part) for part in heads.split(",") if part.strip()]
    if _is_pair(heads):
        return [(int(heads[0]), int(heads[1]))]
    if not isinstance(heads, Iterable):
        raise MechheadsError(f"{heads!r} is not a head. Write 'L9H6' or (9, 6), or a list of them.")
    found = []
    for head in heads:
        if not isinstance(head, str) and not _is_pair(head):
            raise MechheadsError(
                f"{head!r} is not a head. Write 'L9H6' or (9, 6) for head 6 of layer 9."
            )
        found += read_heads(head)
    return found


def _is_pair(head: Any) -> bool:
    return (
        isinstance(head, Sequence)
        and len(head) == 2
        and all(hasattr(i, "__index__") and not isinstance(i, bool) for i in head)
    )


def listed(heads: Sequence[tuple[int, int]], most: int = 8, last: str = "and") -> str:
    """listed([(3, 4), (3, 6), (2, 7)]) is L3H4, L3H6 and L2H7; of many, the first and a count."""
    return in_words([name_of(*head) for head in heads], most, last)


def in_words(names: Sequence[str], most: int = 8, last: str = "and") -> str:
    """in_words(["a", "b", "c"]) is "a, b and c"; of many, the first and a count."""
    if len(names) > most:
        names = [*names[: most - 1], f"{len(names) - most + 1} more"]
    return f" {last} ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def count_of(heads: Sequence[tuple[int, int]]) -> str:
    """1 head, 2 heads."""
    return f"{len(heads)} head{'s' * (len(heads) != 1)}"


def check_heads(heads: Sequence[tuple[int, int]], layers: int, columns: int) -> None:
    """Raise an error that names the heads the model does not have."""
    wrong = [(i, j) for i, j in heads if not (0 <= i < layers and 0 <= j < columns)]
    if wrong:
        raise MechheadsError(
            f"There is no {listed(wrong, last='or')}: layers are 0 to {layers - 1}, heads 0 to "
            f"{columns - 1}."
        )
