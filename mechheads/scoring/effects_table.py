"""Precomputed effects from a CSV file: a score for every head, whatever computed it.

layer,head,effect          head,effect
9,6,0.42                   L9H6,0.42

Columns may be in any order, and others are ignored: a run's own effects.csv is such a file. Errors
name the file and the line. Needs no torch.
"""

import csv
import hashlib
import io
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from mechheads.errors import MechheadsError, shown
from mechheads.heads import listed, name_of, parse
from mechheads.options import read_path

Head = tuple[int, int]
EXAMPLE = "layer,head,effect (or head,effect with heads written L9H6)"
LARGEST = 16 * 2**20  # bytes of a file: a line per head
LARGEST_EFFECT = 3e38  # of a float32


@dataclass(frozen=True)
class EffectsTable:
    """A score per head, and the line that it is in; `sha256` is the digest of the file."""

    name: str
    scores: Mapping[Head, float]
    lines: Mapping[Head, int]
    sha256: str

    def rows(self, layers: int, heads: int, model: str) -> list[list[float]]:
        """The scores as a list per layer; an error if a head is missing or is not the model's."""
        for (layer, head), line in self.lines.items():
            if layer >= layers or head >= heads:
                raise MechheadsError(
                    f"{self.name}, line {line}: {model} has no {name_of(layer, head)}, only layers "
                    f"0 to {layers - 1} with heads 0 to {heads - 1}."
                )
        every = [(layer, head) for layer in range(layers) for head in range(heads)]
        if missing := [head for head in every if head not in self.scores]:
            raise MechheadsError(
                f"{self.name} lacks {listed(missing, most=5)} of {model}'s {len(every)} heads. "
                "Give a line for every head."
            )
        return [[self.scores[layer, head] for head in range(heads)] for layer in range(layers)]


def read_effects(file: str | Path) -> EffectsTable:
    """Read a CSV file; an error names the line that is wrong."""
    path = read_path(file, "--effects")
    try:
        if path.exists() and not path.is_file():
            raise MechheadsError(
                f"{path} is not a file. Give a CSV file such as a run's effects.csv."
            )
        with path.open("rb") as stream:
            content = stream.read(LARGEST + 1)
    except OSError as error:
        raise MechheadsError(
            f"cannot read {path} ({error.strerror}). Give a CSV file with {EXAMPLE}."
        ) from None
    if len(content) > LARGEST:
        raise MechheadsError(
            f"{path} has more than {LARGEST:,} bytes. Effects are one line per head."
        )
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise MechheadsError(f"{path}, line {line}: not UTF-8. Save the file as UTF-8.") from None
    return parse_effects(text, str(path), hashlib.sha256(content).hexdigest())


def parse_effects(text: str, name: str, sha256: str = "") -> EffectsTable:
    """The table that the text of a CSV file holds."""
    rows = _rows(text, name)
    line, header = next(rows, (1, []))
    columns = [cell.strip().lower() for cell in header]
    wanted = ["layer", "head", "effect"] if "layer" in columns else ["head", "effect"]
    for column in wanted:
        if columns.count(column) != 1:
            what = "no column" if column not in columns else "more than one column"
            raise MechheadsError(f"{name}, line {line}: {what} {column!r}. Write {EXAMPLE}.")
    scores: dict[Head, float] = {}
    lines: dict[Head, int] = {}
    for line, row in rows:
        where = f"{name}, line {line}"
        if len(row) != len(columns):
            raise MechheadsError(
                f"{where}: {len(row)} cells, but the header has {len(columns)} columns."
            )
        cells = dict(zip(columns, row, strict=True))
        head = _head(cells, where)
        if head in lines:
            raise MechheadsError(
                f"{where}: {name_of(*head)} is also in line {lines[head]}. Give every head once."
            )
        scores[head], lines[head] = _effect(cells["effect"], where), line
    if not scores:
        raise MechheadsError(f"{name} has no heads. Give a line for every head: {EXAMPLE}.")
    return EffectsTable(name, scores, lines, sha256)


def _rows(text: str, name: str) -> Iterator[tuple[int, list[str]]]:
    """The rows that are not blank, each with the number of its line."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for row in reader:
            if any(cell.strip() for cell in row):
                yield reader.line_num, row
    except csv.Error as error:
        raise MechheadsError(f"{name}, line {reader.line_num}: not CSV ({error}).") from None


def _head(cells: Mapping[str, str], where: str) -> Head:
    if "layer" not in cells:
        try:
            return parse(cells["head"])
        except MechheadsError as error:
            raise MechheadsError(f"{where}: {error}") from None
    layer, head = (_index(cells[column], column, where) for column in ("layer", "head"))
    return layer, head


def _index(cell: str, column: str, where: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", cell.strip()):
        raise MechheadsError(f"{where}: {column} is {shown(cell)}, expected a whole number from 0.")
    return int(cell)


def _effect(cell: str, where: str) -> float:
    try:
        value = math.nan if "_" in cell else float(cell)
    except ValueError:
        value = math.nan
    if not abs(value) <= LARGEST_EFFECT:
        raise MechheadsError(f"{where}: effect is {shown(cell)}, expected a finite number.")
    return value
