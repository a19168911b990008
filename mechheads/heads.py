"""Heads by name: L9H6 is head 6 of layer 9, both counted from 0."""

import re
from collections.abc import Sequence

from mechheads.errors import MechheadsError


def name_of(layer: int, head: int) -> str:
    """name_of(9, 6) is L9H6."""
    return f"L{layer}H{head}"


def parse(text: str) -> tuple[int, int]:
    """parse("L9H6") is (9, 6); an error says how heads are written."""
    found = re.fullmatch(r"[lL](\d+)[hH](\d+)", text.strip())
    if not found:
        raise MechheadsError(f"{text!r} is not a head. Heads are written L9H6: layer 9, head 6.")
    return int(found[1]), int(found[2])


def check_heads(heads: Sequence[tuple[int, int]], layers: int, columns: int) -> None:
    """Raise an error that names a head the model does not have."""
    for layer, head in heads:
        if not (0 <= layer < layers and 0 <= head < columns):
            raise MechheadsError(
                f"There is no {name_of(layer, head)}: layers are 0 to {layers - 1}, heads 0 to "
                f"{columns - 1}."
            )
