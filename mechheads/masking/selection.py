"""Which heads are masked: the first K of a ranking, given ones, or K random others."""

import math
import random
from collections.abc import Sequence
from itertools import combinations

from mechheads.errors import MechheadsError

Head = tuple[int, int]
TOP, GIVEN, RANDOM, NONE = "top", "given", "random", "none"
# Settings of a ranking, and their defaults: given heads exclude them.
RANKING = {"method": "patch", "signed": False, "k": None, "matrix": False, "matrix_k": None}
EITHER = "heads to mask are either given or ranked"


def read_sizes(text: str | None, heads: int, flag: str = "--k") -> tuple[int, ...]:
    """Head counts from a comma-separated list of numbers and shares (16,10%).

    Default: the four largest powers of two up to a quarter of all heads, so that random sets can
    differ.
    """
    if text is None:
        found = [2**i for i in range(20) if 2**i <= heads / 4]
        return tuple(found[-4:] or [1])
    sizes = []
    for part in (part.strip() for part in text.split(",")):
        try:
            share = part.endswith("%")
            size = round(float(part[:-1]) / 100 * heads) if share else int(part)
        except (ValueError, OverflowError):
            raise MechheadsError(
                f"{flag} takes numbers or shares of heads, e.g. 16 or 5%; got {part!r}."
            ) from None
        if size < 1 or size > heads:
            raise MechheadsError(
                f"{flag} {part} is {size} heads; the model has {heads}. Give 1 to {heads}."
            )
        sizes.append(size)
    return tuple(sorted(set(sizes)))


def check_sizes(sizes: Sequence[int], heads: int, draws: int, flag: str = "--k") -> None:
    """Raise an error if too few other heads are left to draw k at random."""
    for k in sizes:
        if draws and 2 * k > heads:
            raise MechheadsError(
                f"{flag} {k} leaves fewer than {k} other heads of {heads} to draw at random. Use "
                f"{flag} up to {heads // 2}{', or --draws 0' if flag == '--k' else ''}."
            )


def check_given(given: Sequence[Head], heads: int, draws: int) -> None:
    """Raise an error if too few other heads are left to draw as many at random."""
    if draws and 2 * len(given) > heads:
        raise MechheadsError(
            f"{len(given)} given heads of {heads} leave fewer than {len(given)} others to draw at "
            f"random. Give up to {heads // 2}, or use --draws 0."
        )


def random_heads(
    ranking: Sequence[Head], k: int, draws: int, seed: int, spared: Sequence[Head] = ()
) -> list[list[Head]]:
    """Distinct random sets of k heads that are not among the first k of the ranking.

    Nor are they among the `spared` ones, if enough heads remain. Fewer than `draws` if there are
    not enough different sets.
    """
    check_sizes([k], len(ranking), draws)
    others = [head for head in ranking[k:] if head not in set(spared)]
    if len(others) < k:
        others = list(ranking[k:])
    found: dict[frozenset[Head], list[Head]] = {}
    wanted = min(draws, math.comb(len(others), k))
    rng = random.Random(f"{seed}/{k}")
    while len(found) < wanted:
        heads = rng.sample(others, k)
        found.setdefault(frozenset(heads), heads)
    return list(found.values())


def overlap(sets: Sequence[Sequence[Head]]) -> float:
    """Share of heads that two sets have in common, mean over pairs of sets."""
    shares = [len(set(one) & set(two)) / len(one) for one, two in combinations(sets, 2)]
    return sum(shares) / len(shares) if shares else math.nan


def elbow(values: Sequence[float]) -> int:
    """How many of the values, sorted in descending order, lie before the curve flattens.

    The elbow is the point farthest below the straight line from the first value to the last.
    """
    ordered = sorted(values, reverse=True)
    last = len(ordered) - 1
    if last < 1 or ordered[0] == ordered[-1]:
        return len(ordered)
    line = [ordered[0] + (ordered[-1] - ordered[0]) * i / last for i in range(last + 1)]
    gaps = [straight - value for straight, value in zip(line, ordered, strict=True)]
    return max(1, gaps.index(max(gaps)))
