"""The full masking experiment: rank heads, mask top or random ones, score the answers.

1. Some questions rank the heads for every function, by a scoring method or a probe; or the heads
   to mask are given, the same for all.
2. The model answers the others with no heads masked, with the top k, and with k random ones.
3. Optionally, every function's heads are masked while every other function is tested.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from circuits.validation import as_circuit
from mechheads.errors import MechheadsError
from mechheads.heads import listed, name_of
from mechheads.metrics.text import Quality
from mechheads.models.model import Model, model_name, shape_of
from mechheads.options import check_alone
from mechheads.progress import stages
from mechheads.prompts import Questions
from mechheads.prompts.partitions import QuestionSplit
from mechheads.runs.result import Result
from mechheads.scoring.registry import find, score_heads
from mechheads.scoring.statistics import wilson

from .answers import FunctionAnswers, Loss, answer_passes, mask_heads
from .matrix import Matrix, compare_orders, cross_mask
from .probe import Probing, probe_functions
from .selection import EITHER, GIVEN, RANKING, TOP, Head, check_given, check_sizes, read_sizes

if TYPE_CHECKING:
    import pandas as pd

PROBE, ELBOW = "probe", "elbow"
# Share of correct answers of the unmasked model below which masking says little.
WEAK = 0.3


@dataclass(frozen=True)
class Masking(Result):
    """All functions on one model. `labels` are the metrics' axis labels.

    `heads` are the heads that were masked if they were given, not ranked.

    `ranked` counts the questions that ranked each function's heads, `left_out` those of functions
    with too few, `too_long` those that did not fit the model's context.
    """

    model: str
    method: str
    positions: str
    functions: tuple[FunctionAnswers, ...]
    labels: Mapping[str, str]
    accuracies: tuple[str, ...]
    ranked: Mapping[str, int] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=dict)
    too_long: int = 0
    probing: Probing | None = None
    matrix: Matrix | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    heads: tuple[Head, ...] = ()

    def check(self) -> None:
        """Raise a ValueError if the heads are not those that were masked, or metrics differ."""
        for answers in self.functions:
            if list(answers.metrics) != list(self.labels):
                raise ValueError("its functions have other metrics than it names")
            masked = [c.heads for c in answers.conditions if c.selection == GIVEN]
            if masked != ([self.heads] if self.heads else []):
                raise ValueError("its heads are not those that were masked")

    @property
    def chosen(self) -> str:
        """What is compared with random heads: the `top` ones, or the `given` ones."""
        return GIVEN if self.heads else TOP

    @property
    def unused(self) -> tuple[str, ...]:
        """What would have ranked the heads, had they not been given."""
        return tuple(RANKING) if self.heads else ()

    @property
    def metric(self) -> str:
        """The first metric, which the headline is about."""
        return next(iter(self.labels))

    def frame(self) -> "pd.DataFrame":
        """A tidy frame: function, selection, k, draw, metric, value."""
        import pandas as pd

        return pd.concat([answers.frame() for answers in self.functions], ignore_index=True)

    def summary(self) -> "pd.DataFrame":
        """Top (or given) heads against random ones, for every function, metric and k.

        `top_low` and `top_high` (`given_low`, `given_high`) are a 95% interval over
        questions; `worst` and `best` are the random draws' range, and `overlap` is the share of
        heads that two draws have in common. `more` is how much more is lost without top (given)
        heads than without random ones, with its paired interval.
        """
        import pandas as pd

        return pd.DataFrame(
            [row for found in self.functions for m in found.metrics for row in found.rows(m)]
        )

    def losses(self, metric: str) -> dict[str, Loss]:
        """By function: how much of the metric is lost, mean over k."""
        return {answers.function: answers.loss(metric) for answers in self.functions}

    @property
    def headline(self) -> dict[str, Any]:
        """The numbers that sum it up."""
        numbers: dict[str, Any] = {"metric": self.metric, "labels": dict(self.labels)}
        if self.heads:
            numbers["heads"] = [name_of(*head) for head in self.heads]
        numbers["parts"] = {
            function: {
                f"lost_without_{self.chosen}": lost.top,
                "lost_without_random": lost.random,
                f"{self.chosen}_loses_more": lost.more,
                "low": lost.low,
                "high": lost.high,
            }
            for function, lost in self.losses(self.metric).items()
        }
        if self.probing is not None:
            low, high = wilson(self.probing.right, self.probing.n)
            numbers |= {"probe_accuracy": self.probing.accuracy, "probe_n": self.probing.n}
            numbers |= {"probe_low": low, "probe_high": high, "probe_chance": self.probing.chance}
        orders = self.matrix and self.matrix.orders()
        if orders:
            for name, values in asdict(compare_orders(*orders)).items():
                ends = ("", ", low", ", high")
                numbers |= {f"hierarchy: {name}{e}": v for e, v in zip(ends, values, strict=True)}
        return numbers | {"too_long": self.too_long, "left_out": dict(self.left_out)}

    @property
    def sentence(self) -> str:
        """Whether top heads matter more than random ones."""
        if self.heads:
            return self._given_sentence
        said = []
        for function, lost in self.losses(self.metric).items():
            random = (
                f", {lost.random:.2f} without random ones: TopK loses {abs(lost.more):.2f} "
                f"{'less' if lost.more < 0 else 'more'} than RandomK (95 % interval of the "
                f"difference {lost.low:+.2f} to {lost.high:+.2f})"
                if lost.random == lost.random
                else ""
            )
            said.append(f"{function} {lost.top:.2f} without the top heads{random}")
        return f"Loss of {self.labels[self.metric]}, mean over k: {'; '.join(said)}."

    @property
    def _given_sentence(self) -> str:
        """Whether the given heads matter more than random ones."""
        said = []
        for function, lost in self.losses(self.metric).items():
            random = (
                f", without as many random heads {lost.random:.2f}, so {abs(lost.more):.2f} "
                f"{'less' if lost.more < 0 else 'more'} (95 % interval of the difference "
                f"{lost.low:+.2f} to {lost.high:+.2f})"
                if lost.random == lost.random
                else ""
            )
            said.append(f"{function} {lost.top:.2f}{random}")
        what = f"{self.labels[self.metric]} without {listed(self.heads)}"
        return f"Loss of {what}: {'; '.join(said)}."

    @property
    def warnings(self) -> tuple[str, ...]:
        """Functions that the model fails even with all heads, and missing questions."""
        rates = {a.function: a.right()[0].mean().item() for a in self.functions}
        weak = ", ".join(f"{name} ({rate:.0%})" for name, rate in rates.items() if rate < WEAK)
        said = [f"{self.model} answers few questions correctly even with all heads: {weak}."]
        missing = (
            [f"{self.too_long} questions are too long for the model."] if self.too_long else []
        )
        missing += [f"{name} has too few questions ({n})." for name, n in self.left_out.items()]
        return *(said if weak else []), *missing


def mask_tasks(
    model: Model,
    split: QuestionSplit,
    qualities: Sequence[Quality],
    *,
    method: str = "patch",
    signed: bool = False,
    k: str | None = None,
    draws: int = 5,
    seed: int = 0,
    positions: str = "last",
    scale: float = 0.0,
    max_tokens: int = 32,
    matrix: bool = False,
    matrix_k: str | None = None,
    heads: Any = None,
    budget: int | None = None,
    quiet: bool = False,
    options: Mapping[str, Any] | None = None,
) -> Masking:
    """Rank the heads on some questions, and answer others with heads masked.

    `k` is a comma-separated list of numbers or shares of heads, or "elbow" with the method "probe";
    `options` are those of the scoring method. `matrix` also masks each function's heads while
    testing every other function. `heads` are heads to mask instead, in any spelling: nothing is
    then ranked.
    """
    if heads is not None:
        ranking = {"method": method, "signed": signed, "k": k, "matrix": matrix}
        check_alone("--heads", EITHER, ranking | {"matrix_k": matrix_k}, RANKING)
    given = () if heads is None else read_given(model, heads, draws)
    every_head = shape_of(model).every_head
    count = len(every_head)
    sizes, middle = read_masks(k, matrix_k, matrix, count, draws)
    sizes = (len(given),) if given else sizes
    common: dict[str, Any] = {
        "seed": seed,
        "max_tokens": max_tokens,
        "budget": budget,
        "quiet": quiet,
    }
    own = {"budget": budget, "quiet": quiet, **(options or {})}
    conditions = 1 + max(1, len(sizes)) * (1 + draws)
    crossing = 1 + len(split.asked) * (1 + max(2, draws))
    # In passes. The probe answers every question once, reads it again, and is trained.
    weights: dict[str, float] = {
        "Ranking heads": (not given)
        * sum(
            4 * answer_passes(part, 1, max_tokens)
            if method == PROBE
            else find(method).passes(count, len(part), own)
            for part in split.ranked
        ),
        "Answering": sum(answer_passes(part, conditions, max_tokens) for part in split.asked),
        "Masking across functions": matrix
        * sum(answer_passes(part, crossing, max_tokens) for part in split.asked),
    }
    answers, crossed, probing = [], None, None
    with stages("mask", weights, quiet) as progress:
        with progress.stage("Ranking heads"):
            if given:
                order = [*given, *(head for head in every_head if head not in given)]
                rankings = {part.name: order for part in split.asked}
            elif method == PROBE:
                probing = probe_functions(model, split.ranked, **common)
                rankings = {f: probing.ranking(f, signed=signed) for f in probing.functions}
            else:
                rankings = rank_heads(model, split.ranked, method, signed, own)
        common |= {"positions": positions, "scale": scale}
        every = {name: sizes or elbow_size(probing, name, count, draws) for name in rankings}
        with progress.stage("Answering"), stages("mask", _lengths(split.asked)) as parts:
            for part in split.asked:
                what = model, part, rankings[part.name], every[part.name], qualities
                with parts.stage(part.name):
                    answers.append(mask_heads(*what, draws=draws, given=bool(given), **common))
        if matrix:
            what = model, split.asked, rankings, middle, qualities[0]
            with progress.stage("Masking across functions"):
                crossed = cross_mask(*what, draws=max(2, draws), **common)
    return Masking(
        model_name(model),
        GIVEN if given else method,
        positions,
        tuple(answers),
        {quality.name: quality.label for quality in qualities},
        tuple(quality.name for quality in qualities if quality.accuracy),
        {} if given else {part.name: len(part) for part in split.ranked},
        dict(split.left_out),
        split.too_long,
        probing,
        crossed,
        {"draws": draws},
        given,
    )


def read_given(model: Model, heads: Any, draws: int) -> tuple[Head, ...]:
    """Heads to mask, in any spelling; an error if the model lacks one or none is named."""
    circuit = as_circuit(model, heads)
    if circuit.gates:
        raise MechheadsError(
            f"The circuit {circuit.name!r} is soft: its heads have gates, but masking leaves heads "
            "out. Give a circuit without gates, or the heads by name."
        )
    check_given(circuit.heads, len(shape_of(model).every_head), draws)
    return circuit.heads


def rank_heads(
    model: Model,
    ranked: Sequence[Questions],
    method: str,
    signed: bool,
    options: Mapping[str, Any],
) -> dict[str, list[Head]]:
    """A ranking of all heads for every function."""
    found = {}
    with stages("rank", _lengths(ranked), bool(options.get("quiet"))) as progress:
        for part in ranked:
            if part.prompts is None:
                raise MechheadsError(
                    f"{part.name} has no corrupted prompts, which {method} needs. Use --method "
                    f"{PROBE}."
                )
            with progress.stage(part.name):
                effects = score_heads(model, part.prompts, method, **options)
            found[part.name] = effects.ranking(signed=signed)
    return found


def _lengths(parts: Sequence[Questions]) -> dict[str, float]:
    """Characters of each part's questions: about how long it takes, next to the others."""
    return {part.name: 1.0 + sum(len(item.prompt) for item in part.items) for part in parts}


def read_masks(
    k: str | None, matrix_k: str | None, matrix: bool, heads: int, draws: int
) -> tuple[tuple[int, ...], int]:
    """How many heads to mask (empty for the elbow), and how many for the matrix."""
    sizes = () if k == ELBOW else read_sizes(k, heads)
    check_sizes(sizes, heads, draws)
    if not matrix:
        return sizes, 0
    crossed = read_sizes(matrix_k, heads, "--matrix-k") if matrix_k else sizes
    if matrix_k and "," in matrix_k:
        raise MechheadsError(f"--matrix-k takes one number or share of heads, got {matrix_k}.")
    middle = crossed[(len(crossed) - 1) // 2]
    check_sizes([middle], heads, 1, "--matrix-k")
    return sizes, middle


def elbow_size(probing: Probing | None, function: str, heads: int, draws: int) -> tuple[int, ...]:
    """The number of heads that the probe finds for a function."""
    assert probing is not None
    size = probing.elbows[function]
    check_sizes([size], heads, draws)
    return (size,)
