"""Where the heads and arrows of a path graph go, so that no arrow runs over a head that it skips.

1. Heads stand in rows by layer, from the bottom up; the logits are the row above.
2. An arrow that skips rows gets a lane in each of them (Sugiyama et al. 1981).
3. Row by row, up and down, heads and lanes move to the mean of what they are joined with below or
   above, and then apart until none overlap, in the same order (isotonic regression).

Distances are in widths of a head and in rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from .circuit import Head

Pair = tuple[Head, Head | None]  # from a head to another, or to the logits
Item = Head | None | tuple[Pair, int]  # a head, the logits, or the lane of an arrow in a row
LANE = 0.35
SWEEPS = 12


@dataclass(frozen=True)
class Layout:
    """The places of heads and logits, and the points that each arrow passes."""

    layers: tuple[int, ...]
    places: Mapping[Head | None, tuple[float, float]]
    arrows: Mapping[Pair, tuple[tuple[float, float], ...]]
    logits: float
    width: float


@dataclass
class _Rows:
    items: list[list[Item]]
    widths: dict[Item, float]
    below: dict[Item, list[Item]] = field(default_factory=dict)
    above: dict[Item, list[Item]] = field(default_factory=dict)
    x: dict[Item, float] = field(default_factory=dict)


def lay_out(pairs: Sequence[Pair]) -> Layout:
    """Place the heads at the ends of these arrows, and the arrows."""
    heads = sorted({end for pair in pairs for end in pair if end})
    layers = sorted({layer for layer, _ in heads})
    level: dict[Head | None, int] = {head: layers.index(head[0]) for head in heads}
    level[None] = len(layers)
    direct = sum(receiver is None for _, receiver in pairs)
    wide = max(1.0, 0.25 * direct + 0.4)
    rows = _Rows([[] for _ in range(len(layers) + 1)], {None: wide})
    for head in [*heads, *([None] if direct else [])]:
        rows.items[level[head]].append(head)
    chains: dict[Pair, list[Item]] = {}
    for pair in pairs:
        sender, receiver = pair
        lanes: list[Item] = [(pair, y) for y in range(level[sender] + 1, level[receiver])]
        for lane, y in zip(lanes, range(level[sender] + 1, level[receiver]), strict=True):
            rows.items[y].append(lane)
            rows.widths[lane] = LANE
        chains[pair] = [sender, *lanes, receiver]
        for low, high in pairwise(chains[pair]):
            rows.above.setdefault(low, []).append(high)
            rows.below.setdefault(high, []).append(low)
    _settle(rows)
    sides = [
        rows.x[item] + side * rows.widths.get(item, 1.0) / 2 for item in rows.x for side in (-1, 1)
    ]
    left, right = min(sides, default=0.0), max(sides, default=0.0)
    x = {item: at - (left + right) / 2 for item, at in rows.x.items()}
    return Layout(
        tuple(layers),
        {head: (x[head], float(y)) for head, y in level.items() if head in x},
        {
            pair: tuple((x[item], float(y)) for y, item in enumerate(chain, level[pair[0]]))
            for pair, chain in chains.items()
        },
        wide,
        right - left,
    )


def apart(wanted: Sequence[float], widths: Sequence[float]) -> list[float]:
    """The places nearest to the wanted ones at which things of these widths do not overlap."""
    steps = [0.0, *accumulate((a + b) / 2 for a, b in pairwise(widths))]
    blocks: list[list[float]] = []
    for place, step in zip(wanted, steps, strict=False):
        blocks.append([place - step])
        while len(blocks) > 1 and _mean(blocks[-2]) > _mean(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    even = [_mean(block) for block in blocks for _ in block]
    return [place + step for place, step in zip(even, steps, strict=False)]


def _settle(rows: _Rows) -> None:
    """Order and place the items of every row."""
    for row in rows.items:
        _place(rows, row, {item: float(i) for i, item in enumerate(row)})
    for sweep in range(SWEEPS):
        up = sweep % 2 == 0
        for row in rows.items if up else reversed(rows.items):
            near = rows.below if up else rows.above
            pull = {
                item: _mean([rows.x[other] for other in near[item]])
                if item in near
                else rows.x[item]
                for item in row
            }
            row.sort(key=lambda item: (pull[item], rows.x[item]))
            _place(rows, row, pull)
    for _ in range(SWEEPS):
        for row in rows.items:
            pull = {
                item: _mean(
                    [rows.x[o] for o in (*rows.below.get(item, ()), *rows.above.get(item, ()))]
                )
                for item in row
            }
            _place(rows, row, pull)


def _place(rows: _Rows, row: Sequence[Item], pull: Mapping[Item, float]) -> None:
    found = apart([pull[item] for item in row], [rows.widths.get(item, 1.0) for item in row])
    rows.x |= dict(zip(row, found, strict=True))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
