"""Which heads are masked: the first K of a ranking, or K others at random."""

import random
from collections.abc import Sequence

from ..errors import MechheadsError

Head = tuple[int, int]


def read_sizes(text: str | None, heads: int) -> tuple[int, ...]:
    """Numbers of heads from a comma list of numbers and shares (16,10%); by default powers of two
    from a sixteenth to half of all heads.
    """
    if text is None:
        found = [2**i for i in range(20) if heads / 32 < 2**i <= heads / 2]
        return tuple(found[-4:] or [max(1, heads // 2)])
    sizes = []
    for part in (part.strip() for part in text.split(",")):
        try:
            share = part.endswith("%")
            value = float(part[:-1]) / 100 * heads if share else int(part)
        except ValueError:
            raise MechheadsError(
                f"--k takes numbers of heads or shares, such as 16,32 or 5%,10%; got {part!r}."
            ) from None
        size = round(value)
        if size < 1 or size > heads:
            raise MechheadsError(
                f"--k {part} is {size} heads; the model has {heads}. Give 1 to {heads}."
            )
        sizes.append(size)
    return tuple(sorted(set(sizes)))


def random_heads(ranking: Sequence[Head], k: int, draws: int, seed: int) -> list[list[Head]]:
    """Sets of k heads, none of which is among the first k of the ranking."""
    others = list(ranking[k:])
    if len(others) < k:
        raise MechheadsError(
            f"there are no {k} random heads beside the first {k}: the model has {len(ranking)}. "
            f"Give --k up to {len(ranking) // 2}, or --draws 0 to go without random heads."
        )
    return [random.Random(f"{seed}/{k}/{i}").sample(others, k) for i in range(draws)]


def elbow(values: Sequence[float]) -> int:
    """How many of the values, sorted from the largest, lie before their curve turns flat.

    The point farthest below the straight line from the first value to the last.
    """
    ordered = sorted(values, reverse=True)
    last = len(ordered) - 1
    if last < 1 or ordered[0] == ordered[-1]:
        return len(ordered)
    line = [ordered[0] + (ordered[-1] - ordered[0]) * i / last for i in range(last + 1)]
    gaps = [straight - value for straight, value in zip(line, ordered, strict=True)]
    return max(1, gaps.index(max(gaps)))
