"""Which heads to keep: the first of the ranking, or a smaller set that explains as much.

- `top`: the first k of the ranking, with the smallest k that reaches the threshold;
- `prune`: starts from `top` and, from weakest to strongest, drops every head without which the rest
  still reaches the threshold: one pass per head;
- `greedy`: starts from nothing and always adds the head that raises f most: one pass per remaining
  head at every step.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.engine.head_subsets import keep_only, measure_subsets, nested
from mechheads.errors import MechheadsError, unknown
from mechheads.metrics import MetricLike
from mechheads.models.model import Model, shape_of
from mechheads.progress import bar, stages
from mechheads.prompts import Prompts

from .circuit import Head
from .measured import explained, needed

# f of each of the given sets of heads.
Explains = Callable[[Sequence[Sequence[Head]]], list[float]]


def search_heads(
    model: Model,
    prompts: Prompts,
    ranking: Sequence[Head],
    how: str = "top",
    metric: MetricLike | None = None,
    *,
    threshold: float = 0.9,
    replacement: str = "corrupt",
    budget: int | None = None,
    quiet: bool = False,
) -> list[Head]:
    """Heads that together reach the threshold on these prompts."""
    check_search(how, threshold)
    layers, heads = shape_of(model).grid

    def measure(keep: Float[Tensor, "set layer head"]) -> Float[Tensor, " set"]:
        return measure_subsets(
            model, prompts, keep, metric, replacement=replacement, budget=budget, quiet=True
        ).mean(1)

    def explains(sets: Sequence[Sequence[Head]]) -> list[float]:
        means = measure(torch.stack([keep_only(kept, layers, heads) for kept in sets]))
        return explained(torch.cat([ends, means]), none=0, whole=1)[2:].tolist()

    every = len(ranking)
    weights = {"Curve": every / 3, "Trying heads": search_passes(how, every) - every / 3}
    with stages("search", weights, quiet) as progress:
        with progress.stage("Curve"):
            curve = explained(measure(nested(ranking, layers, heads))[None])
        first = list(ranking[: int(needed(curve, threshold)[0])])
        ends = measure(torch.stack([keep_only(kept, layers, heads) for kept in ([], ranking)]))
        with progress.stage("Trying heads"):
            return SEARCHES[how](first, ranking, explains, threshold, quiet)


def search_passes(how: str, heads: int) -> float:
    """About how many passes a search takes per prompt, if a quarter of the heads is enough."""
    tried = heads / 4
    each = {"top": 0.0, "prune": 3.0, "greedy": 3 + heads / 3}
    return heads / 3 + tried * each[how]


def check_search(how: str, threshold: float) -> None:
    """Raise an error that names what is unknown or out of range."""
    if how not in SEARCHES:
        raise unknown("search", how, SEARCHES)
    if not 0 < threshold <= 1:
        raise MechheadsError(f"--threshold takes a share above 0 and up to 1, got {threshold}.")


def _top(first: list[Head], *_: object) -> list[Head]:
    return first


def _prune(
    first: list[Head], _: Sequence[Head], explains: Explains, threshold: float, quiet: bool
) -> list[Head]:
    kept = list(first)
    with bar(len(first), "Heads tried", quiet) as progress:
        for head in reversed(first):
            rest = [other for other in kept if other != head]
            if explains([rest])[0] >= threshold:
                kept = rest
            progress.update()
    return kept


def _greedy(
    first: list[Head], ranking: Sequence[Head], explains: Explains, threshold: float, quiet: bool
) -> list[Head]:
    kept: list[Head] = []
    with bar(len(ranking), "Heads added", quiet) as progress:
        reached = 0.0
        while reached < threshold and len(kept) < len(ranking):
            others = [head for head in ranking if head not in kept]
            found = explains([[*kept, head] for head in others])
            reached = max(found)
            kept.append(others[found.index(reached)])
            progress.update()
    return kept


SEARCHES: Mapping[str, Callable[..., list[Head]]] = {
    "top": _top,
    "prune": _prune,
    "greedy": _greedy,
}
