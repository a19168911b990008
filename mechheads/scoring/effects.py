"""What every scoring method returns: how far each head moves the metric, prompt by prompt."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads import metrics
from mechheads.errors import MechheadsError
from mechheads.heads import name_of
from mechheads.metrics import MetricLike
from mechheads.models.model import Model, model_name
from mechheads.observe.evaluation import evaluate
from mechheads.prompts import Prompts
from mechheads.runs.frames import tidy
from mechheads.runs.result import Result

from . import statistics
from .gate_roles import HeadRoles

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class HeadEffects(Result):
    """How far each head moves the metric on each prompt; positive means that the head helps.

    A single value per head has no interval and no p-value: these are NaN. How intervals and
    p-values are computed, and how far they can be trusted: `mechheads.scoring.statistics`.

    `clean` and `corrupt` are the metric of the unchanged runs. `settings` are the method's own
    options, `notes` its other findings. `unit` is what a column stands for: a head, or a key-value
    head where several heads share one. If a method fits something with several seeds, `over` is
    "seeds": a row of `values` is then a seed, and `quantity` names what is measured per head
    instead of a change of the metric. Seeds are not samples of the task, so that the scores have no
    intervals and no p-values: `roles` has the share of seeds that agree, and an effect per prompt.
    """

    task: str
    model: str
    method: str
    metric: str
    values: Float[Tensor, "prompt layer head"]
    clean: Float[Tensor, " prompt"]
    corrupt: Float[Tensor, " prompt"]
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)
    unit: str = "head"
    over: str = "prompts"
    quantity: str = ""
    roles: HeadRoles | None = None

    def check(self) -> None:
        """Raise a ValueError if stored effects cannot be ours."""
        metrics.check_name(self.metric)
        if self.unit not in ("head", "kv_head") or self.over not in ("prompts", "seeds"):
            raise ValueError(f"it has effects of {self.unit[:40]} over {self.over[:40]}")
        if self.roles and self.roles.agreement.shape != self.values.shape[1:]:
            raise ValueError("it has roles of other heads")

    @property
    def scores(self) -> Float[Tensor, "layer head"]:
        """Mean over prompts."""
        return self.values.mean(0)

    @property
    def errors(self) -> Float[Tensor, "layer head"]:
        """Standard error of the mean."""
        if not self.sampled:
            return torch.full_like(self.scores, torch.nan)
        return statistics.standard_error(self.values)

    @property
    def p_values(self) -> Float[Tensor, "layer head"]:
        """p-values, corrected for the number of heads (Benjamini and Hochberg)."""
        if not self.sampled:
            return torch.full_like(self.scores, torch.nan)
        return statistics.p_values(self.values)

    def interval(
        self, level: float = 0.95, seed: int = 0
    ) -> tuple[Float[Tensor, "layer head"], Float[Tensor, "layer head"]]:
        """Interval of the mean, over prompts (symmetric bootstrap-t)."""
        if not self.sampled:
            return torch.full_like(self.scores, torch.nan), torch.full_like(self.scores, torch.nan)
        return statistics.bootstrap(self.values, level, seed)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Why intervals and p-values may promise too much: few prompts, or few with an effect.

        Of effects over seeds, why the fits may mean little.
        """
        if not self.sampled:
            return tuple(map(str, self.notes.get("warnings", ())))
        thin = statistics.thin(self.values).nonzero().tolist()
        return statistics.cautions(
            len(self.values), [f"L{layer}{self.letter}{head}" for layer, head in thin]
        )

    @property
    def single(self) -> bool:
        """Whether there is only one value per head."""
        return len(self.values) < 2

    @property
    def sampled(self) -> bool:
        """Whether the values are of several prompts, so that their mean has an interval."""
        return self.over == "prompts" and not self.single

    @property
    def total(self) -> float:
        """Clean minus corrupted metric: what all heads together can explain."""
        return (self.clean.mean() - self.corrupt.mean()).item()

    def ranking(self, *, signed: bool = False) -> list[tuple[int, int]]:
        """(layer, head) from the strongest effect to the weakest, by absolute or signed value."""
        scores = self.scores if signed else self.scores.abs()
        order = torch.sort(scores.flatten(), descending=True, stable=True).indices.tolist()
        return [divmod(i, scores.shape[1]) for i in order]

    def frame(self) -> "pd.DataFrame":
        """A tidy frame: layer, head, effect, se, ci_low, ci_high, p_value, and the roles if any."""
        columns = {
            "effect": self.scores,
            "se": self.errors,
            **dict(zip(("ci_low", "ci_high"), self.interval(), strict=True)),
            "p_value": self.p_values,
        }
        frame = tidy(("layer", "head"), columns)
        return frame.assign(**self.roles.columns()) if self.roles else frame

    @property
    def headline(self) -> dict[str, Any]:
        """The strongest head, and how many heads have an effect."""
        layer, head = self.ranking()[0]
        return {
            "strongest": f"L{layer}{self.letter}{head}",
            "effect": float(self.scores[layer, head]),
            "significant": int((self.p_values < 0.05).sum()) if self.sampled else None,
            **({"seeds_agree": float(self.roles.agreement.mean())} if self.roles else {}),
            "total": self.total,
        }

    @property
    def sentence(self) -> str:
        """The headline as a sentence."""
        found = self.headline
        count = (
            f"{found['significant']} of {self.scores.numel()} have an effect (corrected p < 0.05)"
            if self.sampled
            else "one value per head, so there are no p-values"
            if self.single
            else f"values over {len(self.values)} seeds, so there are no p-values"
        )
        if self.roles:
            agreed = int((self.roles.agreement == 1).sum())
            count = f"all seeds agree on the role of {agreed} of {self.scores.numel()} heads"
        paths = f" to {to}" if (to := self.settings.get("to")) else ""
        return (
            f"{self.task} on {self.model}, {self.method}{paths}: the strongest {self.unit} is "
            f"{found['strongest']} ({found['effect']:+.3f}); {count}."
        )

    @property
    def letter(self) -> str:
        """H in L9H6; KV where a column stands for a key-value head."""
        return "H" if self.unit == "head" else "KV"

    def top(self, k: int = 10, *, signed: bool = False) -> "pd.DataFrame":
        """The rows of the k strongest heads, with names like L9H6."""
        if k < 0:
            raise MechheadsError(f"top takes 0 or more heads, got {k}.")
        best = self.ranking(signed=signed)[:k]
        frame = self.frame().set_index(["layer", "head"]).loc[best].reset_index()
        frame.insert(0, "name", [f"L{layer}{self.letter}{head}" for layer, head in best])
        return frame


def given_effects(
    model: Model,
    prompts: Prompts,
    metric: MetricLike | None,
    scores: Tensor,
    method: str = "given",
    settings: Mapping[str, Any] | None = None,
    quantity: str = "given score",
) -> HeadEffects:
    """Scores from elsewhere as effects: one per layer and head, or also per prompt.

    `quantity` says what a single score per head is.
    """
    values = scores.detach().float().cpu()
    if values.dim() not in (2, 3) or (values.dim() == 3 and len(values) != len(prompts)):
        raise MechheadsError(
            f"The scores of {method} have shape {tuple(scores.shape)}, expected (layers, heads) or "
            f"(prompts, layers, heads) with {len(prompts)} prompts."
        )
    found = evaluate(model, prompts, metric, quiet=True)
    clean, corrupt = found.clean[found.metric], found.corrupt[found.metric]
    if values.dim() == 2:
        values, clean, corrupt = values[None], clean.mean()[None], corrupt.mean()[None]
    return HeadEffects(
        prompts.task,
        model_name(model),
        method,
        found.metric,
        values,
        clean,
        corrupt,
        dict(settings or {}),
        over="prompts" if scores.dim() == 3 else "seeds",
        quantity="" if scores.dim() == 3 else quantity,
    )


@dataclass(frozen=True)
class PositionEffects(Result):
    """How far each head moves the metric when patched at one position or span of the prompts.

    `positions` are the names of the spans, or numbers from 0 on; `by` says which. `by_layer` is the
    effect of all heads of a layer together. `unit` is what a column of `values` stands for, as in
    `HeadEffects`.
    """

    task: str
    model: str
    metric: str
    by: str
    positions: tuple[str, ...]
    values: Float[Tensor, "prompt layer head pos"]
    by_layer: Float[Tensor, "prompt layer pos"]
    clean: Float[Tensor, " prompt"]
    corrupt: Float[Tensor, " prompt"]
    settings: Mapping[str, Any] = field(default_factory=dict)
    unit: str = "head"

    def check(self) -> None:
        """Raise a ValueError if stored effects cannot be ours."""
        metrics.check_name(self.metric)
        if self.by not in ("position", "span") or self.unit not in ("head", "kv_head"):
            raise ValueError(f"it has effects of {self.unit[:40]} by {self.by[:40]}")
        n = self.values.shape[3]
        numbers = tuple(map(str, range(n)))
        if len(set(self.positions)) != n or len(self.positions) != n:
            raise ValueError(f"it has {len(self.positions)} names for {n} positions")
        if self.by == "position" and self.positions != numbers:
            raise ValueError("its positions are not numbered from 0 on")

    @property
    def places(self) -> "list[int] | list[str]":
        """The positions as numbers, or the names of the spans."""
        numbers = list(range(len(self.positions)))
        return numbers if self.by == "position" else list(self.positions)

    def name(self, layer: int, head: int) -> str:
        """L9H6, or L9KV1 where a column stands for a key-value head."""
        return name_of(layer, head) if self.unit == "head" else f"L{layer}KV{head}"

    @property
    def scores(self) -> Float[Tensor, "layer head pos"]:
        """Mean over prompts."""
        return self.values.mean(0)

    @property
    def strongest(self) -> tuple[int, int, int]:
        """Layer, head and position of the largest absolute effect."""
        flat = int(self.scores.abs().argmax())
        layer, rest = divmod(flat, self.scores[0].numel())
        return layer, *divmod(rest, self.scores.shape[2])

    @property
    def warnings(self) -> tuple[str, ...]:
        """Why intervals and p-values may promise too much: few prompts, or few with an effect."""
        if len(self.values) < 2:
            return ()
        thin = statistics.thin(self.values).nonzero().tolist()
        names = [f"{self.name(*head)} at {self.places[place]}" for *head, place in thin]
        return statistics.cautions(len(self.values), names)

    @property
    def headline(self) -> dict[str, Any]:
        """The head and position or span that matter most."""
        layer, head, place = self.strongest
        effect = float(self.scores[layer, head, place])
        return {
            "strongest": self.name(layer, head),
            "position": self.places[place],
            "effect": effect,
        }

    @property
    def sentence(self) -> str:
        """The headline as a sentence."""
        found = self.headline
        where = f"{'position ' if self.by == 'position' else ''}{found['position']}"
        return (
            f"{self.task} on {self.model}: the largest effect is {found['effect']:+.3f}, from "
            f"{found['strongest']} at {where}."
        )

    def frame(self) -> "pd.DataFrame":
        """A tidy frame: layer, head, position, effect, se, ci_low, ci_high, p_value."""
        columns = {
            "effect": self.scores,
            "se": statistics.standard_error(self.values),
            **dict(zip(("ci_low", "ci_high"), statistics.bootstrap(self.values), strict=True)),
            "p_value": statistics.p_values(self.values),
        }
        frame = tidy(("layer", "head", "position"), columns)
        if self.by == "span":
            frame["position"] = [self.positions[i] for i in frame["position"]]
        return frame

    def ranking(self) -> list[tuple[int, int]]:
        """(layer, head) from the strongest effect to the weakest, wherever in the prompt."""
        sizes = self.scores.abs().amax(2)
        order = torch.sort(sizes.flatten(), descending=True, stable=True).indices.tolist()
        return [divmod(i, sizes.shape[1]) for i in order]

    def table(self) -> "pd.DataFrame":
        """A row per head, from the strongest effect to the weakest; a column per place."""
        import pandas as pd

        heads = self.ranking()
        return pd.DataFrame(
            [self.scores[head].tolist() for head in heads],
            index=pd.Index([self.name(*head) for head in heads], name=self.unit),
            columns=pd.Index(self.places, name=self.by),
        )
