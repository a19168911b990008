"""How patching grows: heads, prompts, length, layers and width, each doubled three times.

1. One small GPT-2 of random weights; along each axis one number doubles, all else stays. (More
   heads are narrower ones; a wider model has as many heads, which are wider.)
2. All heads are patched, in a process of its own per size, where prompts differ from the first
   position on.
3. The exponent is the slope of the line through the logarithms: 1 is proportional, 2 quadratic.
"""

import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mechheads.progress import bar

from .peers import run_ours
from .workload import Workload

SHAPE: Mapping[str, Any] = {
    "n_layers": 4,
    "n_heads": 8,
    "d_model": 256,
    "d_mlp": 1024,
    "d_vocab": 3000,
    "n_ctx": 128,
}
AXES: Mapping[str, tuple[int, ...]] = {
    "heads": (4, 8, 16, 32),
    "prompts": (8, 16, 32, 64),
    "length": (16, 32, 64, 128),
    "layers": (2, 4, 8, 16),
    "width": (128, 256, 512, 1024),
}
LEAST = 1.0  # MB: less is not told apart from the allocator's own


@dataclass(frozen=True)
class Sized:
    """What patching all heads takes at one size.

    `memory` is the most that was in use and `loaded` what was before patching, in MB; `weights` are
    those of the blocks.
    """

    axis: str
    size: int
    threads: int
    weights: int
    seconds: float
    memory: float
    loaded: float

    @property
    def added(self) -> float:
        """MB that patching takes beyond the loaded model."""
        return self.memory - self.loaded


def measure_sizes(
    threads: int,
    axes: Mapping[str, Sequence[int]] = AXES,
    shape: Mapping[str, Any] = SHAPE,
    backend: str | None = None,
    quiet: bool = False,
) -> list[Sized]:
    """Patch all heads at every size; a size that several axes share is measured once."""
    known: dict[str, dict[str, Any]] = {}
    found = []
    with bar(sum(map(len, axes.values())), "Sizes", quiet) as progress:
        for axis, sizes in axes.items():
            for size in sizes:
                work = workload(axis, size, threads, shape)
                if str(work) not in known:
                    known[str(work)] = _measure(work, backend)
                answer = known[str(work)]
                numbers = (answer[key] for key in ("seconds", "memory", "loaded"))
                found.append(Sized(axis, size, threads, weights(work.shape), *numbers))
                progress.update()
    return found


def workload(
    axis: str, size: int, threads: int, shape: Mapping[str, Any] = SHAPE, rows: int = 16
) -> Workload:
    """The work at one size; prompts have 16 tokens and there are 16 of them, unless they grow."""
    work = Workload(dict(shape), threads, rows, 16, first=1)
    if axis in ("prompts", "length"):
        return replace(work, **{"rows" if axis == "prompts" else "length": size})
    changed = {
        "heads": {"n_heads": size},
        "layers": {"n_layers": size},
        "width": {"d_model": size, "d_mlp": 4 * size},
    }
    return replace(work, shape={**shape, **changed[axis]})


def weights(shape: Mapping[str, Any]) -> int:
    """The weights of the blocks, without biases and norms."""
    return shape["n_layers"] * (4 * shape["d_model"] ** 2 + 2 * shape["d_model"] * shape["d_mlp"])


def _measure(work: Workload, backend: str | None) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place:
        work.write(Path(place))
        return run_ours(Path(place), "patch", work.threads, backend)


def exponent(sizes: Sequence[float | int], values: Sequence[float | int]) -> float:
    """The slope of the least-squares line through the logarithms.

    NaN if a value is too small for a logarithm.

    >>> exponent([1, 2, 4], [3, 12, 48])
    2.0
    """
    if min(values) <= 0:
        return math.nan
    x, y = ([math.log(value) for value in column] for column in (sizes, values))
    middle = sum(x) / len(x)
    slope = sum((a - middle) * b for a, b in zip(x, y, strict=True))
    return round(slope / sum((a - middle) ** 2 for a in x), 6)


def exponents(found: Sequence[Sized]) -> dict[str, tuple[float, float]]:
    """For every axis and number of threads, how seconds and added memory grow with it."""
    result = {}
    for axis in dict.fromkeys(one.axis for one in found):
        here = [one for one in found if one.axis == axis]
        sizes = [one.size for one in here]
        seconds = exponent(sizes, [one.seconds for one in here])
        # Below this the allocator's own growth is all that is seen.
        added = [one.added if one.added >= LEAST else 0.0 for one in here]
        result[axis] = (seconds, exponent(sizes, added))
    return result
