"""Replace any set of heads at once, and measure the metric."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads import metrics
from mechheads.engine.head_subsets import keep_only, measure_subsets
from mechheads.errors import MechheadsError
from mechheads.heads import name_of, read_heads
from mechheads.metrics import MetricLike
from mechheads.models.model import Model, model_name, shape_of
from mechheads.prompts import Prompts
from mechheads.runs.result import Result

from . import statistics

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Ablated(Result):
    """The metric of every prompt before and after some heads were replaced at once."""

    task: str
    model: str
    metric: str
    heads: tuple[tuple[int, int], ...]
    replacement: str
    direction: str
    before: Float[Tensor, " prompt"]
    after: Float[Tensor, " prompt"]

    @property
    def change(self) -> Float[Tensor, " prompt"]:
        """After minus before."""
        return self.after - self.before

    @property
    def warnings(self) -> tuple[str, ...]:
        """Whether the interval may be too narrow: few prompts, or few that change."""
        thin = statistics.thin(self.change[:, None])
        names = [", ".join(name_of(*head) for head in self.heads)] if bool(thin) else []
        return statistics.cautions(len(self.change), names)

    @property
    def headline(self) -> dict[str, Any]:
        """The mean before and after, and the change with its 95% interval over prompts."""
        low, high = statistics.bootstrap(self.change[:, None])
        return {
            "heads": [name_of(*head) for head in self.heads],
            "metric": self.metric,
            "before": self.before.mean().item(),
            "after": self.after.mean().item(),
            "change": self.change.mean().item(),
            "low": low.item(),
            "high": high.item(),
        }

    @property
    def sentence(self) -> str:
        """The headline as a sentence."""
        found = self.headline
        names = ", ".join(found["heads"]) or "no heads"
        return (
            f"{self.task} on {self.model}, {names} replaced ({self.replacement}): "
            f"{metrics.label_of(self.metric)} {found['before']:.3f} before, {found['after']:.3f} "
            f"after (change {found['change']:+.3f}, 95% {found['low']:+.3f} to "
            f"{found['high']:+.3f})."
        )

    def frame(self) -> "pd.DataFrame":
        """A row per prompt: before, after, change."""
        import pandas as pd

        columns = {"before": self.before, "after": self.after, "change": self.change}
        return pd.DataFrame({name: values.numpy() for name, values in columns.items()})


def ablate(
    model: Model,
    prompts: Prompts,
    heads: Any,
    metric: MetricLike | None = None,
    *,
    replacement: str = "corrupt",
    direction: str = "noising",
    budget: int | None = None,
    quiet: bool = False,
) -> Ablated:
    """Replace a set of heads at once and measure the metric.

    Args:
        model: what `mechheads.load` returns
        prompts: what `tasks.make` returns
        heads: "L9H6,L9H9", (9, 6), a list of either, or a circuit
        metric: a name in `mechheads.METRICS`, or your own function; default: the task's own
        replacement: "corrupt" patches them with the other run; "zero", "mean" and "position_mean"
            ablate them
        direction: "noising" changes the clean run, "denoising" patches clean heads into the
            corrupted one
        budget: tokens per pass, which bounds memory; default: chosen for the device
        quiet: show no progress bar

    Returns:
        Ablated: the metric of every prompt before and after. Everything after a replaced head is
        rerun. Costs four forward passes.

    >>> import mechheads, tasks
    >>> model = mechheads.load("mini")
    >>> prompts = tasks.make("ioi", model, n=16)
    >>> found = mechheads.ablate(model, prompts, "L3H4,L3H6", quiet=True)
    >>> found.headline["change"] < 0
    True
    """
    chosen = read_heads(heads)
    if not chosen:
        raise MechheadsError("ablate needs at least one head, such as 'L9H6'.")
    grid = shape_of(model).grid
    keep = torch.stack([torch.ones(grid), 1 - keep_only(chosen, *grid)])
    before, after = measure_subsets(
        model,
        prompts,
        keep,
        metric,
        direction=direction,
        replacement=replacement,
        budget=budget,
        quiet=quiet,
    )
    return Ablated(
        prompts.task,
        model_name(model),
        metrics.choose(metric, prompts).name,
        tuple(dict.fromkeys(chosen)),
        replacement,
        direction,
        before,
        after,
    )
