"""At which numbers of kept heads a curve is measured.

1. Up to 64 heads: at every number. With more: at 0 to 16, at about 40 numbers that are evenly
   spaced on a log scale, at MIB's shares, and with all heads.
2. The gap in which f first reaches the threshold is narrowed until N is exact: N - 1 heads,
   measured, do not reach it, N do. So are the gaps before it whose ends are nearer to the threshold
   than the deepest dip of the curve: there f might have reached it and come back.
3. The ends of N's interval over prompts are narrowed in the same way, for the bootstrap samples
   that decide them.
4. Random rankings together are measured at no more points than the ranking itself; with more
   than 64 heads at half as many, for about half of its work. Between them f is interpolated.

Where f does not fall on the way to the threshold, N, the circuit and the interval are those of a
curve that is measured at every number.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.errors import MechheadsError
from mechheads.scoring.statistics import ends

# Shares of all heads at which MIB measures f.
SHARES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
FEW = 64  # heads: as many are measured one by one
DENSE = 16  # the first heads are, however many there are
SPACED = 40  # and about as many further numbers of heads
ALL = "all"
AUTO = "auto"
# Differences of f below this are rounding.
TOLERANCE = 1e-6


def mib_counts(heads: int) -> list[int]:
    """MIB's shares of the heads, each rounded down to whole heads."""
    return [int(share * heads) for share in SHARES]


def check_points(points: int | str) -> None:
    """Raise an error unless points is "auto", "all" or a number of them."""
    if points not in (AUTO, ALL) and not (str(points).isdecimal() and int(points) >= 2):
        raise MechheadsError(f"--points takes auto, all or a number from 2 on, got {points}.")


def curve_points(heads: int, points: int | str = AUTO) -> list[int]:
    """The numbers of heads at which a curve is measured first.

    >>> curve_points(4), len(curve_points(64)), len(curve_points(1024))
    ([0, 1, 2, 3, 4], 65, 62)
    """
    check_points(points)
    most = heads + 1
    if points == ALL or (heads <= FEW if points == AUTO else int(points) >= most):
        return list(range(most))
    if points == AUTO:
        dense, spaced = DENSE, _spaced(DENSE, heads, SPACED)
    else:
        dense, spaced = 0, _spaced(1, heads, int(points) - 1)
    return sorted({*range(dense + 1), heads, *mib_counts(heads), *spaced})


def random_points(heads: int, own: int, draws: int) -> list[int]:
    """Evenly spaced numbers of heads for each random ranking, `own` points for all of them.

    >>> random_points(32, 33, 10)
    [0, 8, 16, 24, 32]
    """
    shared = 1 if heads <= FEW else 2
    inside = max(1, (own - 2) // (shared * draws))
    return sorted({round(i * heads / (inside + 1)) for i in range(inside + 2)})


def _spaced(low: int, high: int, n: int) -> set[int]:
    """About n numbers up to `high`, evenly spaced on a log scale."""
    low = max(1, low)
    return {round(low * (high / low) ** (i / max(1, n))) for i in range(1, n + 1)}


def points_to_add(
    at: Sequence[int],
    f: Float[Tensor, " point"],
    resampled: Float[Tensor, "draw point"],
    threshold: float,
) -> list[int]:
    """Where to measure next, so that N and its interval become exact; none if they are."""
    gaps = [i for i in range(len(at) - 1) if at[i + 1] - at[i] > 1]
    wanted = {i for i in gaps if _may_reach(f, i, threshold)}
    wanted |= {i for i in gaps if _may_leave(f, i, threshold)}
    first = _first(resampled, threshold)
    places = torch.tensor(at, dtype=torch.float)
    fewest = torch.where(first > 0, places[(first - 1).clamp(min=0)] + 1, 0.0)
    pairs = zip(ends(fewest), ends(places[first]), strict=True)
    for low, high in ((float(a), float(b)) for a, b in pairs):
        if low < high:
            crossed = {int(i) - 1 for i in first.unique()}
            near = {i for i in gaps if at[i] < high and at[i + 1] >= low}
            wanted |= near & crossed
    return sorted(k for i in wanted for k in _inside(at[i], at[i + 1]))


def deepest_dip(f: Float[Tensor, " point"]) -> float:
    """The largest fall of f from one measured point to the next."""
    return max(0.0, float((f[:-1] - f[1:]).max()))


def may_be_missed(at: Sequence[int], f: Float[Tensor, " point"], threshold: float) -> bool:
    """Whether f may reach the threshold between points before the first one that does."""
    return any(at[i + 1] - at[i] > 1 and _may_reach(f, i, threshold) for i in range(len(at) - 1))


def _may_reach(f: Float[Tensor, " point"], i: int, threshold: float) -> bool:
    """Whether f may first reach the threshold in the gap after point i."""
    first = int(_first(f[None], threshold)[0])
    if i + 1 >= first:
        return i + 1 == first
    dip = deepest_dip(f)
    return dip > TOLERANCE and float(torch.maximum(f[i], f[i + 1])) + dip >= threshold


def _may_leave(f: Float[Tensor, " point"], i: int, threshold: float) -> bool:
    """Whether the gap after point i is the one from which on f stays above the threshold."""
    below = (f < threshold - TOLERANCE).nonzero().flatten()
    return len(below) > 0 and int(below[-1]) == i


def _first(curves: Tensor, threshold: float) -> Tensor:
    """The index of the first point of each curve that reaches the threshold; the last if none."""
    above = curves >= threshold - TOLERANCE
    above[:, -1] = True
    return above.float().argmax(1)


def _inside(low: int, high: int) -> list[int]:
    """All numbers in a small gap, else three that divide it evenly."""
    if high - low <= 5:
        return list(range(low + 1, high))
    return [low + round(i * (high - low) / 4) for i in (1, 2, 3)]
