"""Answers of the model with no heads masked, the first K of a ranking, and K others at random."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..errors import MechheadsError
from ..generation import answer
from ..models import Model
from ..prompts import Questions
from ..storage import load_result, save_result
from .quality import Quality
from .selection import Head, random_heads

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go


@dataclass(frozen=True)
class Condition:
    """What is masked: nothing, the `top` k heads, or k `random` ones of a draw."""

    selection: str
    k: int
    draw: int
    heads: tuple[Head, ...]


@dataclass(frozen=True)
class Panel:
    """One function: its conditions, what was said in each, and every metric of every answer."""

    function: str
    ranking: tuple[Head, ...]
    prompts: tuple[str, ...]
    gold: tuple[tuple[str, ...], ...]
    conditions: tuple[Condition, ...]
    said: tuple[tuple[str, ...], ...]
    metrics: tuple[str, ...]
    values: Float[Tensor, "condition metric prompt"]

    def frame(self) -> "pd.DataFrame":
        """A tidy frame: function, selection, k, draw, metric, value (mean over prompts)."""
        import pandas as pd

        rows = [
            (self.function, c.selection, c.k, c.draw, metric, self.values[i, j].mean().item())
            for i, c in enumerate(self.conditions)
            for j, metric in enumerate(self.metrics)
        ]
        columns = ["function", "selection", "k", "draw", "metric", "value"]
        return pd.DataFrame(rows, columns=pd.Index(columns))

    def records(self) -> list[dict[str, Any]]:
        """What the model said, condition by condition."""
        return [
            {
                "function": self.function,
                "selection": c.selection,
                "k": c.k,
                "draw": c.draw,
                "prompt": prompt,
                "answer": said,
                "gold": list(gold),
            }
            for c, texts in zip(self.conditions, self.said, strict=True)
            for prompt, said, gold in zip(self.prompts, texts, self.gold, strict=True)
        ]


@dataclass(frozen=True)
class Masking:
    """All functions on one model. `labels` are the metrics' names on an axis."""

    model: str
    method: str
    positions: str
    panels: tuple[Panel, ...]
    labels: Mapping[str, str]
    accuracies: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)

    def frame(self) -> "pd.DataFrame":
        """A tidy frame: function, selection, k, draw, metric, value."""
        import pandas as pd

        return pd.concat([panel.frame() for panel in self.panels], ignore_index=True)

    def summary(self) -> "pd.DataFrame":
        """Top against random: function, k, metric, whole, top, random, and random's range."""
        import pandas as pd

        frame: Any = self.frame()
        rows = []
        for (function, metric), part in frame.groupby(["function", "metric"], sort=False):
            whole = part[part["selection"] == "none"]["value"].mean()
            for k in sorted(set(part["k"]) - {0}):
                now = part[part["k"] == k]
                drawn = now[now["selection"] == "random"]["value"]
                rows.append(
                    (
                        function,
                        k,
                        metric,
                        whole,
                        now[now["selection"] == "top"]["value"].mean(),
                        drawn.mean(),
                        drawn.min(),
                        drawn.max(),
                    )
                )
        columns = ["function", "k", "metric", "whole", "top", "random", "low", "high"]
        return pd.DataFrame(rows, columns=pd.Index(columns))

    def falls(self, metric: str) -> dict[str, tuple[float, float]]:
        """By function: how much of the metric is lost, mean over k, without the top heads and
        without random ones.
        """
        table: Any = self.summary()
        table = table[table["metric"] == metric]
        return {
            str(function): (
                float((part["whole"] - part["top"]).mean()),
                float((part["whole"] - part["random"]).mean()),
            )
            for function, part in table.groupby("function", sort=False)
        }

    def plot(self) -> "go.Figure":
        """A panel per function: top and random, accuracy and text quality, over k."""
        from .figures import draw_masking

        return draw_masking(self)

    def save(self, file: Path) -> Path:
        """Write it whole, as safetensors."""
        return save_result(self, file)

    @classmethod
    def load(cls, file: Path) -> "Masking":
        """Read what `save` wrote."""
        return load_result(cls, file)


def mask_heads(
    model: Model,
    questions: Questions,
    ranking: Sequence[Head],
    sizes: Sequence[int],
    qualities: Sequence[Quality],
    *,
    draws: int = 5,
    seed: int = 0,
    positions: str = "last",
    scale: float = 0.0,
    max_tokens: int = 32,
    budget: int | None = None,
    quiet: bool = False,
) -> Panel:
    """Answers with the first k heads masked and with k others at random, for every size k.

    A masked head's z is multiplied by `scale`.
    """
    if positions not in ("last", "all"):
        raise MechheadsError(f"positions are last or all, not {positions!r}.")
    if draws < 0:
        raise MechheadsError(f"--draws takes 0 or more, got {draws}.")
    conditions = [Condition("none", 0, 0, ())]
    for k in sizes:
        if k > len(ranking):
            raise MechheadsError(f"--k {k}: the model has {len(ranking)} heads. Give fewer.")
        conditions.append(Condition("top", k, 0, tuple(ranking[:k])))
        if draws:
            conditions += [
                Condition("random", k, i, tuple(heads))
                for i, heads in enumerate(random_heads(ranking, k, draws, seed))
            ]
    prompts = tuple(q.prompt for q in questions.items)
    gold = tuple(q.answers for q in questions.items)
    said = answer(
        model,
        prompts,
        torch.stack([mask_of(model, c.heads, scale) for c in conditions]),
        positions=positions,
        max_tokens=max_tokens,
        budget=budget,
        quiet=quiet,
    )
    values = [[quality.judge(texts, gold, said[0]) for quality in qualities] for texts in said]
    return Panel(
        questions.name,
        tuple(ranking),
        prompts,
        gold,
        tuple(conditions),
        tuple(map(tuple, said)),
        tuple(quality.name for quality in qualities),
        torch.tensor(values),
    )


def mask_of(model: Model, heads: Sequence[Head], scale: float) -> Float[Tensor, "layer head"]:
    """What every head's z is multiplied by."""
    keep = torch.ones(model.cfg.n_layers, model.cfg.n_heads)
    for layer, head in heads:
        keep[layer, head] = scale
    return keep
