"""Average attention on each token, with and without a run of filler.

The weight of key j in a head is the mean over later queries i > j of A[i, j]: the column mean
strictly below the diagonal. For the original tokens only, the run's queries are left out as well as
its keys. Only prompts that align are averaged: the same number of original tokens, and the run at
the same position.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mechheads.errors import MechheadsError
from mechheads.heads import name_of
from mechheads.models.hooks import with_patterns
from mechheads.models.model import Model, encoder_of, model_name, shape_of
from mechheads.prompts import LEAST
from mechheads.runs.result import Result
from mechheads.scoring.statistics import bootstrap

from .insertion import Inserted
from .mechanism import Mechanism, late_weights, mechanism_of, only_original

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ["model", "condition", "panel", "position", "token", "weight", "low", "high"]
SINK = 10.0  # times the median weight of the others


@dataclass(frozen=True)
class Attention(Result):
    """Every condition's weights of one head on aligned prompts, and every head's total change.

    `original[condition]` has a row per prompt over the original tokens, `full[condition]` over all
    positions; the last one, which no later query sees, is NaN. `change` is that of the condition
    `changed` against `none`. `sink` says whether the first token is left out of the panels.
    """

    NOT_FINITE: ClassVar = ("original", "full")

    model: str
    head: tuple[int, int]
    original: Mapping[str, Float[Tensor, "prompt token"]]
    full: Mapping[str, Float[Tensor, "prompt _pos"]]  # conditions differ in length
    cut: int
    runs: Mapping[str, int]
    tokens: Mapping[str, tuple[str, ...]]
    change: Float[Tensor, "layer head"]
    changed: str
    sink: bool
    mechanisms: tuple[Mechanism, ...]

    def mechanism(self, condition: str) -> Mechanism | None:
        """What the condition's run does; None if no original token comes after it."""
        return next((m for m in self.mechanisms if m.condition == condition), None)

    def frame(self) -> "pd.DataFrame":
        """A tidy frame: model, condition, panel, position, token, weight, low, high."""
        import pandas as pd

        rows = []
        for condition in self.original:
            panels = {"original": (self.original[condition], self.tokens["none"])}
            if self.runs[condition]:
                panels["full"] = (self.full[condition], self.tokens[condition])
            for panel, (values, names) in panels.items():
                low, high = bootstrap(values[:, :-1], within=(0.0, 1.0))
                mean = values[:, :-1].mean(0)
                for i in range(int(self.sink), len(mean)):
                    numbers = (float(mean[i]), float(low[i]), float(high[i]))
                    rows.append((self.model, condition, panel, i, names[i], *numbers))
        return pd.DataFrame(rows, columns=pd.Index(COLUMNS))

    @property
    def headline(self) -> dict[str, Any]:
        """By condition: the attention on the filler."""
        return {
            "head": name_of(*self.head),
            "sink": self.sink,
            "attention_on_the_run": {m.condition: m.mass for m in self.mechanisms},
        }

    @property
    def sentence(self) -> str:
        """The same in words."""
        taken = ", ".join(f"{m.condition} {m.mass:.0%}" for m in self.mechanisms) or "none"
        return f"Attention of {name_of(*self.head)} in {self.model} on the filler: {taken}."


def column_means(
    pattern: Float[Tensor, "*head query key"],
) -> Float[Tensor, "*head key"]:
    """The mean weight of every key from later queries; NaN for the last key."""
    n = pattern.shape[-1]
    later = torch.ones(n, n, dtype=torch.bool, device=pattern.device).tril(-1)
    return (pattern * later).sum(-2) / later.sum(0)


def aligned(prompts: Mapping[str, Sequence[Inserted]]) -> dict[str, list[Inserted]]:
    """The largest group of prompts that align in every condition; an error if too few."""
    keys = [
        tuple((len(p.ids), p.cut if p.run else -1, p.run) for p in together)
        for together in zip(*prompts.values(), strict=True)
    ]
    best, count = max(Counter(keys).items(), key=lambda item: item[1], default=(None, 0))
    if count < LEAST:
        raise MechheadsError(
            f"only {count} prompts have the same number of tokens, too few to average attention "
            f"over; {LEAST} are needed. Raise --n."
        )
    chosen = [i for i, key in enumerate(keys) if key == best]
    return {name: [made[i] for i in chosen] for name, made in prompts.items()}


@torch.inference_mode()
def all_weights(
    model: Model, prompts: Sequence[Inserted]
) -> tuple[Float[Tensor, "prompt layer head token"], Float[Tensor, "prompt layer head pos"]]:
    """The column means of every head on aligned prompts: of the original tokens, and of all."""
    shape = (len(prompts), *shape_of(model).grid)
    original = torch.zeros(*shape, len(prompts[0].original))
    full = torch.zeros(*shape, len(prompts[0].ids))
    for i, prompt in enumerate(prompts):

        def see(layer: int, pattern: Tensor, i: int = i, prompt: Inserted = prompt) -> None:
            own = pattern[0].float().cpu()
            original[i, layer] = column_means(only_original(own, prompt))
            full[i, layer] = column_means(own)

        with_patterns(model, torch.tensor([prompt.ids]), see)
    return original, full


def measure_attention(
    model: Model,
    prompts: Mapping[str, Sequence[Inserted]],
    head: tuple[int, int] | None,
) -> Attention:
    """The weights of a head, by default the one that changes most, under every condition."""
    others = [name for name in prompts if name != "none"]
    if not others:
        raise MechheadsError("attention needs a condition besides none. Add one to --conditions.")
    kept = aligned(prompts)
    every = {name: all_weights(model, made) for name, made in kept.items()}
    changed = "mless" if "mless" in others else others[0]
    sinks = sinks_of(every["none"][0])
    change = total_change(every["none"][0], every[changed][0], sinks)
    layer, which = head or divmod(int(change.flatten().argmax()), shape_of(model).heads)
    sink = bool(sinks[layer, which])
    cut = kept[changed][0].cut
    mechanisms = []
    if cut < len(kept["none"][0].ids):
        before, _ = late_weights(model, kept["none"], (layer, which), cut)
        for name in others:
            now, mass = late_weights(model, kept[name], (layer, which), cut)
            mechanisms.append(mechanism_of(name, before, now, mass, sink=sink))
    return Attention(
        model_name(model),
        (layer, which),
        {name: original[:, layer, which] for name, (original, _) in every.items()},
        {name: full[:, layer, which] for name, (_, full) in every.items()},
        cut,
        {name: made[0].run for name, made in kept.items()},
        {name: tuple(encoder_of(model).texts(made[0].ids)) for name, made in kept.items()},
        change,
        changed,
        sink,
        tuple(mechanisms),
    )


def total_change(
    before: Float[Tensor, "prompt layer head token"],
    now: Float[Tensor, "prompt layer head token"],
    sinks: Bool[Tensor, "layer head"],
) -> Float[Tensor, "layer head"]:
    """Total change in the mean weights of the original tokens, excluding sinks."""
    moved = (now - before)[..., :-1].mean(0).abs()
    return moved[..., 1:].sum(-1) + moved[..., 0] * ~sinks


def sinks_of(values: Float[Tensor, "prompt layer head token"]) -> Bool[Tensor, "layer head"]:
    """Heads whose first token gets many times the median weight."""
    mean = values[..., :-1].mean(0)
    return mean[..., 0] > SINK * mean[..., 1:].median(-1).values
