"""Gradient interaction modifications (Edin et al. 2025, arXiv:2505.17630).

Attention repairs itself: where two positions say the same, removing either changes little, and the
gradient says that neither matters. Attribution with a changed backward pass:

1. The softmax passes gradients on as if its scores were divided by a temperature, T = 2. As in the
   authors' code, the gradient is not divided by T in addition.
2. Norms are frozen: their scale is a constant.
3. A product shares the gradient evenly between its factors: values get 1/2, queries and keys 1/4
   each, the two branches of a gated MLP 1/2 each.

Where we differ: the paper attributes to inputs and features; here, gradients are multiplied by the
change of a head's output between the two runs, as in `attribution`.
"""

from dataclasses import dataclass

from torch import Tensor

from mechheads.errors import MechheadsError
from mechheads.metrics import MetricLike
from mechheads.models.model import Model
from mechheads.prompts import Prompts

from ..effects import HeadEffects
from .layers import Layer, Parts, gradients, score

SHARES = {"q": 0.25, "k": 0.25, "v": 0.5}


@dataclass(frozen=True)
class Interactions:
    """A warmer softmax, frozen norms and evenly shared products."""

    temperature: float
    frozen_norms: bool = True

    def prepare(self, layer: Layer) -> dict[str, Tensor]:
        """Nothing: the other run does not change the gradient."""
        return {}

    def at_neurons(self, parts: Parts, known: Parts, slopes: Parts) -> dict[str, Tensor]:
        """Minus half of the slopes at both branches of a gated MLP."""
        if "pre_linear" not in parts:
            return {}
        return {part: -slopes[part] / 2 for part in ("pre", "pre_linear")}

    def at_heads(self, parts: Parts, known: Parts, slopes: Parts) -> dict[str, Tensor]:
        """The changed slopes at queries, keys and values, minus the plain ones."""
        warm = (parts["scores"].detach() / self.temperature).softmax(-1)
        slope = slopes["pattern"]
        slope = warm * (slope - (warm * slope).sum(-1, keepdim=True))
        changed = gradients({"scores": slope}, parts, {part: parts[part] for part in ("q", "k")})
        changed["v"] = slopes["v"]
        return {part: SHARES[part] * changed[part] - slopes[part] for part in SHARES}


def gim(
    model: Model,
    prompts: Prompts,
    metric: MetricLike | None = None,
    *,
    direction: str = "noising",
    temperature: float = 2.0,
    budget: int | None = None,
    quiet: bool = False,
) -> HeadEffects:
    """`attribution` with the backward pass of GIM, with the same sign as `patch`.

    The values are for a ranking: paths through several products count less than they do in the
    model. Three passes forward and two backward, one layer at a time.
    """
    if not 0 < temperature < float("inf"):
        raise MechheadsError(f"--temperature takes a number above 0, got {temperature}.")
    settings = {"direction": direction, "temperature": temperature}
    rule = Interactions(temperature)
    return score(
        model, prompts, metric, "gim", settings, rule, drop=False, budget=budget, quiet=quiet
    )
