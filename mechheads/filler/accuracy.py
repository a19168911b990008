"""The same questions under several conditions: accuracies, intervals, and paired tests."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool
from scipy import stats
from torch import Tensor

from ..generation import answer
from ..models import Model
from ..prompts import Question
from ..storage import load_result, save_result
from .insertion import Inserted
from .maths import is_right

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go


@dataclass(frozen=True)
class Answers:
    """Which questions a model answered rightly under each condition; the first one is `none`."""

    model: str
    conditions: tuple[str, ...]
    right: Bool[Tensor, "condition question"]
    said: tuple[tuple[str, ...], ...]
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Accuracies:
    """All models. p-values are McNemar's exact test against the first condition, corrected for the
    number of comparisons (Holm).
    """

    answers: tuple[Answers, ...]
    axis: str = "condition"

    def frame(self) -> "pd.DataFrame":
        """A tidy frame: model, condition, n, correct, accuracy, low, high, p_value."""
        import pandas as pd

        rows, raw = [], []
        for found in self.answers:
            for i, condition in enumerate(found.conditions):
                correct, n = int(found.right[i].sum()), found.right.shape[1]
                ci = stats.binomtest(correct, n).proportion_ci(method="wilson")
                p = mcnemar(found.right[0], found.right[i]) if i else None
                raw.append(p)
                rows.append((found.model, condition, n, correct, correct / n, ci.low, ci.high))
        columns = ["model", self.axis, "n", "correct", "accuracy", "low", "high"]
        frame = pd.DataFrame(rows, columns=pd.Index(columns))
        corrected = iter(holm([p for p in raw if p is not None]))
        frame["p_value"] = [float("nan") if p is None else next(corrected) for p in raw]
        return frame

    def plot(self) -> "go.Figure":
        """Bars by model, a bar per condition, with 95 % intervals."""
        from .figures import draw_accuracies

        return draw_accuracies(self)

    def save(self, file: Path) -> Path:
        """Write it whole, as safetensors."""
        return save_result(self, file)

    @classmethod
    def load(cls, file: Path) -> "Accuracies":
        """Read what `save` wrote."""
        return load_result(cls, file)


def ask(
    model: Model,
    questions: Sequence[Question],
    prompts: Mapping[str, Sequence[Inserted]],
    *,
    max_tokens: int,
    stop: Sequence[str],
    budget: int | None = None,
    quiet: bool = False,
) -> Answers:
    """Greedy answers to the same questions under every condition."""
    whole = torch.ones(1, model.cfg.n_layers, model.cfg.n_heads)
    options: dict[str, Any] = {"max_tokens": max_tokens, "stop": stop, "budget": budget}
    said, right = [], []
    for made in prompts.values():
        texts = answer(model, [p.text for p in made], whole, quiet=quiet, **options)[0]
        said.append(tuple(texts))
        right.append([is_right(t, q.answers) for t, q in zip(texts, questions, strict=True)])
    tokens = tuple(max(p.run for p in made) for made in prompts.values())
    return Answers(model.cfg.model_name, tuple(prompts), torch.tensor(right), tuple(said), tokens)


def mcnemar(before: Bool[Tensor, " question"], after: Bool[Tensor, " question"]) -> float:
    """Exact test whether as many questions were lost as won; 1 where none changed."""
    lost, won = int((before & ~after).sum()), int((~before & after).sum())
    return float(stats.binomtest(lost, lost + won).pvalue) if lost + won else 1.0


def holm(p_values: Sequence[float]) -> list[float]:
    """Corrected for their number: the smallest times all, the next times all but one, and so on."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, p_values[i] * (len(p_values) - rank)))
        corrected[i] = largest
    return corrected
