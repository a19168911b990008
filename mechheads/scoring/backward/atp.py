"""AtP*: attribution patching that sees through a saturated softmax (Kramár et al. 2024).

The gradient of a saturated softmax is 0, so attribution patching misses every head that decides
where a later head attends, and cancelling paths hide others (arXiv:2403.00745).

1. QK correction: the softmax of every head is computed again with the queries of the other run, and
   with its keys. That exact change of the pattern, times the gradient at the pattern, is the effect
   of the head's query or key. Everything after the pattern stays linear.
2. The effect is passed on to the heads before: to the gradient at the scores comes what is missing,
   along the change of the scores (Broyden's secant update, weighted by the attention of both runs).
   Gradient times the change of the query is then the effect of step 1.
3. Neurons: the slope of an activation function between the two runs takes the place of its
   derivative, which is 0 on either side of a step.
4. GradDrop: the mean size of the estimates over gradients that avoid one layer each.

Where we differ from the paper. It scores queries, keys and head outputs at single positions, each
with the correction of its own softmax; a head output that acts through a later softmax gets none.
We score whole heads and pass the correction on (step 2), with all positions of the query or the key
exchanged together. Step 3 is ours (`neurons=False` leaves it out). With GradDrop the mean includes
the gradient that avoids no layer, without which a head that acts through a single layer would be
lost in a shallow model, and the values have the sign of that gradient.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.metrics import MetricLike
from mechheads.models.hooks import layer_parts
from mechheads.models.model import Model, shape_of
from mechheads.prompts import Prompts

from ..effects import HeadEffects
from .layers import Layer, Parts, gradients, score
from .missed_heads import check_subsets, missed_heads

FLAT = 1e-4  # change of a neuron's input below which its derivative is used
EVEN = 1e-6  # spread of the change of scores below which the softmax's derivative is used
Scores = Float[Tensor, "row head query key"]


@dataclass(frozen=True)
class Secants:
    """The exact change of a pattern or neuron between the runs, instead of its derivative."""

    neurons: bool = True
    frozen_norms: bool = False

    def prepare(self, layer: Layer) -> dict[str, Tensor]:
        """The patterns with exchanged queries and keys, the neurons with exchanged inputs."""
        with torch.no_grad():
            other = layer_parts(layer.model, layer.index, layer.other)
        known = {}
        for part in ("q", "k"):
            mixed = layer.replaced(part, other[part])
            known |= {f"{name} {part}": mixed[name] for name in ("scores", "pattern")}
        if self.neurons and {"pre", "post"} <= other.keys():
            known |= {"pre": other["pre"], "post": layer.replaced("pre", other["pre"])["post"]}
        return known

    def at_neurons(self, parts: Parts, known: Parts, slopes: Parts) -> dict[str, Tensor]:
        """What the slopes between the two runs add to those at the neurons' inputs."""
        if "pre" not in known:
            return {}
        step = known["pre"] - parts["pre"].detach()
        wide = step.abs() > FLAT
        change = slopes["post"] * (known["post"] - parts["post"].detach())
        return {"pre": torch.where(wide, change / step.where(wide, 1.0) - slopes["pre"], 0.0)}

    def at_heads(self, parts: Parts, known: Parts, slopes: Parts) -> dict[str, Tensor]:
        """What the exact changes of the patterns add to the slopes at queries and keys."""
        scores, pattern = parts["scores"].detach(), parts["pattern"].detach()
        extra = {}
        for part in ("q", "k"):
            now = known[f"scores {part}"], known[f"pattern {part}"]
            found = missing_slope(scores, pattern, *now, slopes["scores"], slopes["pattern"])
            extra |= gradients({"scores": found}, parts, {part: parts[part]})
        return extra


def missing_slope(
    scores: Scores,
    pattern: Scores,
    new_scores: Scores,
    new_pattern: Scores,
    at_scores: Scores,
    at_pattern: Scores,
) -> Scores:
    """What to add to the slope at the scores to make it exact for one change of the scores.

    The sum times the change of the scores is the slope at the pattern times its change. It points
    along the change, centred and weighted by the mean pattern: where neither run attends, a score
    does not matter.
    """
    masked = torch.finfo(scores.dtype).min / 2
    seen = (scores > masked) & (new_scores > masked)
    step = torch.where(seen, new_scores - scores, 0.0)
    wanted = (at_pattern * (new_pattern - pattern)).sum(-1, keepdim=True)
    missing = wanted - (at_scores * step).sum(-1, keepdim=True)
    weight = (pattern + new_pattern) / 2
    total = weight.sum(-1, keepdim=True).clamp(min=torch.finfo(scores.dtype).tiny)
    along = weight * (step - (weight * step).sum(-1, keepdim=True) / total)
    spread = (along * step).sum(-1, keepdim=True)
    uneven = spread > EVEN
    return torch.where(uneven, missing / spread.where(uneven, 1.0) * along, 0.0)


def atp(
    model: Model,
    prompts: Prompts,
    metric: MetricLike | None = None,
    *,
    direction: str = "noising",
    drop: bool = False,
    neurons: bool = True,
    subsets: int = 0,
    seed: int = 0,
    budget: int | None = None,
    quiet: bool = False,
) -> HeadEffects:
    """Estimate `patch`, with the same sign, by gradients corrected as in AtP*.

    Six passes forward and two backward, one layer at a time: about three times `attribution`. With
    `drop` (GradDrop) a backward pass through half of the layers more for each layer, and the values
    are sizes for a ranking, smaller than effects. `subsets` is the number of random subsets of the
    weaker four fifths of the heads that are patched, a pass each, to bound what was missed: see
    `missed_heads`, and `.notes` of the result.
    """
    check_subsets(subsets)
    settings = {"direction": direction, "drop": drop, "neurons": neurons}
    rule = Secants(neurons)
    shared: dict[str, Any] = {"budget": budget, "quiet": quiet}
    found = score(model, prompts, metric, "atp", settings, rule, drop=drop, **shared)
    if not subsets:
        return found
    weaker = found.ranking()[max(4, len(shape_of(model).every_head) // 5) :]
    common = {"direction": direction, "seed": seed, **shared}
    bound = missed_heads(model, prompts, metric, weaker, subsets, **common)
    return replace(found, settings=settings | {"subsets": subsets, "seed": seed}, notes=bound)
