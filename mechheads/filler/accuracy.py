"""The same questions under several conditions: accuracies, intervals, and paired tests."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool
from scipy import stats
from torch import Tensor

from mechheads.engine.generate import generate
from mechheads.metrics.values import is_right
from mechheads.models.model import Model, encoder_of, model_name, shape_of
from mechheads.progress import stages
from mechheads.prompts import Question
from mechheads.runs.result import Result
from mechheads.scoring.statistics import wilson

from .insertion import Inserted
from .redistribution import arm

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Answers:
    """Which questions a model answered correctly under each condition; the first is `none`.

    `tokens` counts the filler tokens, `cut_off` is the share of answers that reached the length
    limit. A condition that could not be asked is missing from `right`, `said` and `cut_off`.
    """

    model: str
    conditions: tuple[str, ...]
    tokens: tuple[int | None, ...]
    right: Mapping[str, Bool[Tensor, " question"]]
    said: Mapping[str, tuple[str, ...]]
    cut_off: Mapping[str, float]

    def p_value(self, condition: str) -> float | None:
        """The uncorrected p-value of the condition against the first one."""
        first = self.conditions[0]
        if condition == first or condition not in self.right or first not in self.right:
            return None
        return mcnemar(self.right[first], self.right[condition])


@dataclass(frozen=True)
class Accuracies(Result):
    """The answers of all models.

    p-values are from McNemar's exact test against the first condition, Holm-corrected for the
    number of comparisons over all models.
    """

    answers: tuple[Answers, ...]
    axis: str = "condition"

    def frame(self) -> "pd.DataFrame":
        """A tidy frame; numbers are missing where nothing was asked.

        Columns: model, condition, n, correct, accuracy, low, high, p_value, tokens, cut_off.
        """
        import pandas as pd

        rows, raw = [], []
        for found in self.answers:
            for condition, tokens in zip(found.conditions, found.tokens, strict=True):
                raw.append(found.p_value(condition))
                right = found.right.get(condition)
                numbers = [None] * 5 if right is None else _numbers(right)
                cut_off = found.cut_off.get(condition)
                rows.append((found.model, condition, *numbers, None, tokens, cut_off))
        columns = ["model", self.axis, "n", "correct", "accuracy", "low", "high"]
        frame = pd.DataFrame(rows, columns=pd.Index([*columns, "p_value", "tokens", "cut_off"]))
        corrected = iter(holm([p for p in raw if p is not None]))
        frame["p_value"] = [float("nan") if p is None else next(corrected) for p in raw]
        return frame

    @property
    def headline(self) -> dict[str, Any]:
        """By model: the accuracy under every condition."""
        frame: Any = self.frame()
        rows: dict[str, dict[str, Any]] = {}
        for row in frame.to_dict("records"):
            rows.setdefault(row["model"], {})[row[self.axis]] = row["accuracy"]
        return rows

    @property
    def sentence(self) -> str:
        """Accuracies, and whether any difference is significant."""
        frame: Any = self.frame().rename(columns={self.axis: "condition"})
        parts = []
        for model in dict.fromkeys(frame["model"]):
            rows = frame[frame["model"] == model]
            asked = rows[rows["accuracy"].notna()]
            listed = ", ".join(f"{r.condition} {r.accuracy:.0%}" for r in asked.itertuples())
            parts.append(f"{model}: {listed}")
        changed = frame[frame["p_value"] < 0.05]
        if not len(changed):
            verdict = "No condition differs significantly from none."
        else:
            named = ", ".join(f"{r.condition} on {r.model}" for r in changed.itertuples())
            verdict = f"Significantly different from none (corrected p < 0.05): {named}."
        return f"Accuracy on {int(frame['n'].iloc[0])} questions. {'. '.join(parts)}. {verdict}"


def ask(
    model: Model,
    questions: Sequence[Question],
    prompts: Mapping[str, Sequence[Inserted] | None],
    *,
    max_tokens: int,
    stop: Sequence[str],
    budget: int | None = None,
    moved: Mapping[str, Any] | None = None,
    quiet: bool = False,
) -> Answers:
    """Greedy answers to the same questions under every condition.

    The condition `arm` runs with ARM, with the arguments `moved`. A condition without prompts is
    not asked.
    """
    whole = torch.ones(1, *shape_of(model).grid)
    options: dict[str, Any] = {"max_tokens": max_tokens, "stop": stop, "budget": budget}
    asked = {name: made for name, made in prompts.items() if made is not None}
    right, said, cut_off = {}, {}, {}
    weights = {name: ask_tokens({name: made}, max_tokens) for name, made in asked.items()}
    with stages("ask", weights, quiet) as progress:
        for name, made in asked.items():
            with (
                progress.stage(name),
                arm(model, **(moved or {})) if name == "arm" else nullcontext(),
            ):
                texts = generate(model, [p.text for p in made], whole, **options)[0]
            said[name] = tuple(texts)
            right[name] = torch.tensor(
                [is_right(t, q.answers) for t, q in zip(texts, questions, strict=True)]
            )
            cut_off[name] = sum(_is_cut_off(model, t, max_tokens) for t in texts) / len(texts)
    tokens = tuple(
        None if made is None else max(p.tokens for p in made) for made in prompts.values()
    )
    return Answers(model_name(model), tuple(prompts), tokens, right, said, cut_off)


def ask_tokens(prompts: Mapping[str, Sequence[Inserted] | None], max_tokens: int) -> float:
    """Tokens to read and write at most: about how long asking takes, for progress bars."""
    return float(sum(len(p.ids) + max_tokens for made in prompts.values() for p in made or ()))


def mcnemar(before: Bool[Tensor, " question"], after: Bool[Tensor, " question"]) -> float:
    """Exact test of whether equally many questions were lost and won; 1 if none changed."""
    lost, won = int((before & ~after).sum()), int((~before & after).sum())
    return float(stats.binomtest(lost, lost + won).pvalue) if lost + won else 1.0


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm correction: the smallest times n, the next times n - 1, and so on."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, p_values[i] * (len(p_values) - rank)))
        corrected[i] = largest
    return corrected


def _numbers(right: Bool[Tensor, " question"]) -> tuple[int, int, float, float, float]:
    """n, correct, accuracy, and the Wilson interval."""
    correct, n = int(right.sum()), len(right)
    return n, correct, correct / n, *wilson(correct, n)


def _is_cut_off(model: Model, text: str, max_tokens: int) -> bool:
    tokenizer = encoder_of(model).tokenizer
    return len(tokenizer.encode(text, add_special_tokens=False)) >= max_tokens
