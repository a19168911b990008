"""Can the model do the task? Metrics on clean and corrupted prompts, before any intervention."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads import metrics
from mechheads.metrics import METRICS, MetricLike, after_prompt, score
from mechheads.models.hooks import logits_at_end
from mechheads.models.model import Model, encoder_of, model_name
from mechheads.models.wrap import check_logits
from mechheads.progress import bar
from mechheads.prompts import Prompts, TokenIds
from mechheads.prompts.batches import batches
from mechheads.runs.result import Result

if TYPE_CHECKING:
    import pandas as pd

NEVER = 0.05  # a model that outputs the right answer less often never does
WORD_ENDS = tuple(".,:;?!")  # a space follows these


@dataclass(frozen=True)
class Evaluation(Result):
    """Every metric of every prompt, clean and corrupted; `metric` is the one requested.

    `chance` is the accuracy of a model that prefers a random answer, right or wrong. `unspaced` is
    an example of the answers if all of them seem to lack their leading space; `skipped` counts the
    prompts of the task file that could not be used. If the prompts have no corrupted twins, they
    are not `paired`, and `corrupt` repeats `clean`.
    """

    task: str
    model: str
    metric: str
    clean: Mapping[str, Float[Tensor, " prompt"]]
    corrupt: Mapping[str, Float[Tensor, " prompt"]]
    chance: float
    unspaced: str = ""
    skipped: int = 0
    paired: bool = True

    def check(self) -> None:
        """Raise a ValueError if a metric is missing."""
        for name in {self.metric, *self.clean}:
            metrics.check_name(name)
        for side in (self.clean, self.corrupt):
            if not {self.metric, "accuracy", "top1"} <= set(side) or set(side) != set(self.clean):
                raise ValueError("it does not have every metric")

    def frame(self) -> "pd.DataFrame":
        """A tidy frame: prompt (from 0), side, metric, value."""
        import pandas as pd

        return pd.DataFrame(
            [
                (i, side, name, value)
                for side, values in self.sides.items()
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
            [
                [n, *(x for side in self.sides.values() for x in _mean_error(side[n]))]
                for n in names
            ],
            columns=pd.Index(
                ["metric", *(f"{side}{se}" for side in self.sides for se in ("", "_se"))]
            ),
        )

    @property
    def sides(self) -> dict[str, Mapping[str, Float[Tensor, " prompt"]]]:
        """The metrics of the clean prompts, and of the corrupted ones if there are any."""
        return {"clean": self.clean} | ({"corrupt": self.corrupt} if self.paired else {})

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
        skipped = (
            f"{self.skipped} prompts of {self.task} were left out: they cannot be used with the "
            f"tokenizer of {self.model}."
        )
        return (*([self.warning] if self.warning else []), *([skipped] if self.skipped else []))

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
                f"model that fails the task means nothing.{self._hint}"
            )
        if self.paired and not better > 0:
            return (
                f"{self.model} scores no better on the clean prompts of {self.task} than on the "
                f"corrupted ones, so there is no effect to explain.{self._hint}"
            )
        if said < 0.5:
            return (
                f"{self.model} ranks the right answer of {self.task} above the wrong ones but "
                f"outputs it on only {said:.0%} of the prompts: interpret its circuit with care."
                f"{self._hint}"
            )
        return None

    @property
    def _hint(self) -> str:
        """The likely reason if the model never outputs the answer: it lacks its leading space."""
        if not self.unspaced or self.clean["top1"].mean().item() >= NEVER:
            return ""
        return (
            f" The answers do not begin with a space: {' ' + self.unspaced!r} and "
            f"{self.unspaced!r} are different tokens. Write each answer as it follows its prompt."
        )


def evaluate(
    model: Model, prompts: Prompts, metric: MetricLike | None = None, *, quiet: bool = False
) -> Evaluation:
    """Measure how well a model does a task, before any intervention.

    Args:
        model: what `mechheads.load` returns
        prompts: what `tasks.make` returns
        metric: a name in `mechheads.METRICS`, or your own function; default: the task's own
        quiet: show no progress bar

    Returns:
        Evaluation: this metric and all of ours that apply, of every prompt, clean and corrupted;
        `warnings` says if the model cannot do the task. Costs two forward passes.

    >>> import mechheads, tasks
    >>> model = mechheads.load("mini")
    >>> found = mechheads.evaluate(model, tasks.make("ioi", model, n=16), quiet=True)
    >>> found.headline["accuracy"]
    1.0
    """
    wanted = metrics.choose(metric, prompts)
    contrasted = all(pair.wrong for pair in prompts.pairs)
    ours = [METRICS[name] for name in METRICS.builtin]
    judges = [judge for judge in ours if contrasted or not judge.contrast]
    judges += [wanted] * (wanted not in judges)
    values = {
        side: {judge.name: torch.zeros(len(prompts)) for judge in judges}
        for side in ("clean", "corrupt")
    }
    with torch.inference_mode(), bar(len(prompts), "Prompts measured", quiet) as progress:
        for batch in batches(encoder_of(model), prompts, max_tokens=4096):
            for side, tokens in (("clean", batch.clean), ("corrupt", batch.corrupt)):
                logits = logits_at_end(model, tokens, batch.steps, batch.pair_of)
                check_logits(model_name(model), logits)
                if side == "clean":
                    batch = replace(batch, reference=after_prompt(logits, batch).float().cpu())
                scores = score(logits, batch, whole=True)
                for judge in judges:
                    values[side][judge.name][batch.pairs] = judge(scores).float().cpu()
            progress.update(len(batch.pairs))
    sizes = [(len(pair.answers), len(pair.wrong)) for pair in prompts.pairs]
    return Evaluation(
        prompts.task,
        model_name(model),
        wanted.name,
        values["clean"],
        values["corrupt"],
        chance=sum(n / (n + wrong) for n, wrong in sizes if wrong) / len(sizes),
        unspaced=_unspaced(prompts),
        skipped=prompts.skipped,
        paired=all(pair.corrupt for pair in prompts.pairs),
    )


def _unspaced(prompts: Prompts) -> str:
    """The first answer, if every answer is a word that follows another without a space."""
    followed = all(
        (pair.clean[-1:].isalpha() or pair.clean[-1:] in WORD_ENDS)
        and all(text[:1].isalnum() and not isinstance(text, TokenIds) for text in pair.answers)
        for pair in prompts.pairs
    )
    return prompts.pairs[0].answers[0][:40] if followed else ""


def _mean_error(values: Float[Tensor, " prompt"]) -> tuple[float, float]:
    n = len(values)
    error = values.std().item() / math.sqrt(n) if n > 1 else math.nan
    return values.mean().item(), error
