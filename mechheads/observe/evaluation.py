"""Can the model do the task? Metrics on clean and corrupted prompts, before any intervention."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechheads import metrics
from mechheads.metrics.token import METRICS, score
from mechheads.models.hooks import check_logits, logits_at_end
from mechheads.models.model import Model, encoder_of, model_name
from mechheads.progress import bar
from mechheads.prompts import Prompts
from mechheads.prompts.batches import Batch, batches
from mechheads.runs.result import Result

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Evaluation(Result):
    """Every metric of every prompt, clean and corrupted; `metric` is the one requested.

    `chance` is the accuracy of a model that prefers a random answer, right or wrong.
    """

    task: str
    model: str
    metric: str
    clean: Mapping[str, Float[Tensor, " prompt"]]
    corrupt: Mapping[str, Float[Tensor, " prompt"]]
    chance: float

    def check(self) -> None:
        """Raise a ValueError if a metric is missing."""
        for side in (self.clean, self.corrupt):
            if set(side) != set(METRICS) or self.metric not in side:
                raise ValueError("it does not have every metric")

    def frame(self) -> "pd.DataFrame":
        """A tidy frame: prompt (from 0), side, metric, value."""
        import pandas as pd

        return pd.DataFrame(
            [
                (i, side, name, value)
                for side, values in (("clean", self.clean), ("corrupt", self.corrupt))
                for name, row in values.items()
                for i, value in enumerate(row.tolist())
            ],
            columns=pd.Index(["prompt", "side", "metric", "value"]),
        )

    def summary(self) -> "pd.DataFrame":
        """Mean and standard error over prompts: a row per metric, the requested one first."""
        import pandas as pd

        names = list(dict.fromkeys([self.metric, "accuracy", "top1"]))
        return pd.DataFrame(
            [[n, *_mean_error(self.clean[n]), *_mean_error(self.corrupt[n])] for n in names],
            columns=pd.Index(["metric", "clean", "clean_se", "corrupt", "corrupt_se"]),
        )

    @property
    def headline(self) -> dict[str, Any]:
        """Mean metric, accuracy and top-1 accuracy on the clean prompts."""
        names = dict.fromkeys([self.metric, "accuracy", "top1"])
        return {name: self.clean[name].mean().item() for name in names} | {"chance": self.chance}

    @property
    def sentence(self) -> str:
        """The headline as a sentence."""
        found = self.headline
        return (
            f"{self.model} prefers the right answer on {found['accuracy']:.0%} of the prompts of "
            f"{self.task} (chance {self.chance:.0%}) and outputs it on {found['top1']:.0%}."
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """Why a circuit found here would mean little."""
        return (self.warning,) if self.warning else ()

    @property
    def warning(self) -> str | None:
        """The warning, or None if the model does the task.

        It does the task if its accuracy is at least halfway from chance to 1.
        """
        accuracy = self.clean["accuracy"].mean().item()
        said = self.clean["top1"].mean().item()
        better = self.clean[self.metric].mean().item() - self.corrupt[self.metric].mean().item()
        if accuracy < (1 + self.chance) / 2:
            return (
                f"{self.model} cannot do {self.task}: it prefers the right answer on "
                f"{accuracy:.0%} of the prompts, where chance is {self.chance:.0%}. A circuit of a "
                "model that fails the task means nothing."
            )
        if not better > 0:
            return (
                f"{self.model} scores no better on the clean prompts of {self.task} than on the "
                "corrupted ones, so there is no effect to explain."
            )
        if said < 0.5:
            return (
                f"{self.model} ranks the right answer of {self.task} above the wrong ones but "
                f"outputs it on only {said:.0%} of the prompts: interpret its circuit with care."
            )
        return None


def evaluate(
    model: Model, prompts: Prompts, metric: str | None = None, *, quiet: bool = False
) -> Evaluation:
    """Measure how well a model does a task, before any intervention.

    Args:
        model: what `mechheads.load` returns
        prompts: what `tasks.make` returns
        metric: a name in `mechheads.METRICS`; default: the task's own
        quiet: show no progress bar

    Returns:
        Evaluation: every metric of every prompt, clean and corrupted; `warnings` says if the model
        cannot do the task. Costs two forward passes.

    >>> import mechheads, tasks
    >>> model = mechheads.load("mini")
    >>> found = mechheads.evaluate(model, tasks.make("ioi", model, n=16), quiet=True)
    >>> found.headline["accuracy"]
    1.0
    """
    metric = metrics.find(metric or prompts.metric).name
    values = {
        side: {name: torch.zeros(len(prompts)) for name in METRICS} for side in ("clean", "corrupt")
    }
    with torch.inference_mode(), bar(len(prompts), "Prompts measured", quiet) as progress:
        for batch in batches(encoder_of(model), prompts, max_tokens=4096):
            for side, tokens in (("clean", batch.clean), ("corrupt", batch.corrupt)):
                for name, value in _measure(model, batch, tokens).items():
                    values[side][name][batch.pairs] = value.float().cpu()
            progress.update(len(batch.pairs))
    sizes = [(len(pair.answers), len(pair.wrong)) for pair in prompts.pairs]
    return Evaluation(
        prompts.task,
        model_name(model),
        metric,
        values["clean"],
        values["corrupt"],
        chance=sum(right / (right + wrong) for right, wrong in sizes) / len(sizes),
    )


def _measure(
    model: Model, batch: Batch, tokens: Int[Tensor, "row pos"]
) -> dict[str, Float[Tensor, " batch"]]:
    logits = logits_at_end(model, tokens, batch.steps, batch.pair_of)
    check_logits(model_name(model), logits)
    scores = score(logits, batch)
    return {name: metric(scores) for name, metric in METRICS.items()}


def _mean_error(values: Float[Tensor, " prompt"]) -> tuple[float, float]:
    n = len(values)
    error = values.std().item() / math.sqrt(n) if n > 1 else math.nan
    return values.mean().item(), error
