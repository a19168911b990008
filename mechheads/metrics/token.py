"""How well a model answers: every metric is a function of the same scores.

`score` turns the logits at the end of each row into the log probability of every answer, a sum
over its tokens. For single-token answers, a difference of log probabilities is the difference of
their logits, so `logit_diff` works for answers of any length.

Most metrics need only the answers. One that needs the logits of all tokens after the prompt, or
those of the clean run (`kl`, and your own unless they say otherwise), is `whole`.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from inspect import getdoc
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechheads.errors import MechheadsError, unknown
from mechheads.plugins import Table
from mechheads.prompts import Prompts, check_given
from mechheads.prompts.batches import Batch

NAME = re.compile(r"\w{1,60}")


@dataclass(frozen=True)
class Scores:
    """What a metric is computed from, for all variants of a batch at once.

    logprob: the log probability of each answer, right or wrong; -inf where there is none
    greedy: whether greedy decoding gives every token of the answer
    right: whether the answer is a right one
    present: whether there is such an answer: prompts have different numbers of them
    tokens: the first token of each answer, -1 where there is none
    logits: the logits of all tokens after the prompt; only for metrics that are `whole`
    clean: the same in the clean run without intervention
    """

    logprob: Float[Tensor, "*variant batch choice"]
    greedy: Bool[Tensor, "*variant batch choice"]
    right: Bool[Tensor, "batch choice"]
    present: Bool[Tensor, "batch choice"]
    tokens: Int[Tensor, "batch choice"]
    logits: Float[Tensor, "*variant batch vocab"] | None = None
    clean: Float[Tensor, "batch vocab"] | None = None


@dataclass(frozen=True)
class Metric:
    """A number per prompt, larger where the model does better. `label` is its name on an axis.

    A `relative` metric only compares answers with each other and needs only their logits. A
    `smooth` one has gradients; if it is `flat`, they are 0 in the clean run, where it is largest. A
    `whole` one sees the logits of all tokens. A `contrast` needs wrong answers.
    """

    name: str
    function: Callable[[Scores], Tensor]
    label: str
    relative: bool = False
    smooth: bool = True
    whole: bool = False
    contrast: bool = False
    flat: bool = False

    def __call__(self, scores: Scores) -> Float[Tensor, "*variant batch"]:
        """The metric of every prompt; an error says what is wrong with the function."""
        try:
            found: Any = self.function(scores)
        except MechheadsError:
            raise
        except Exception as error:
            raise MechheadsError(
                f"The metric {self.name} raised {type(error).__name__}: {error}"
            ) from error
        wanted = scores.logprob.shape[:-1]
        if not isinstance(found, Tensor):
            raise MechheadsError(
                f"The metric {self.name} returned {type(found).__name__}, expected a tensor with a "
                "value per variant and prompt."
            )
        if found.shape != wanted:
            raise MechheadsError(
                f"The metric {self.name} returned shape {tuple(found.shape)}, expected "
                f"{tuple(wanted)}: a value per variant and prompt. Reduce only the last dimension."
            )
        if bool(found.isnan().any()):
            raise MechheadsError(f"The metric {self.name} returned NaN.")
        return found.to(scores.logprob.dtype)


# A name in METRICS, a metric, or a function of `Scores`.
MetricLike = str | Metric | Callable[[Scores], Tensor]


def score(
    logits: Float[Tensor, "*variant row steps vocab"], batch: Batch, whole: bool = False
) -> Scores:
    """The scores of all answers from the logits at the last positions of the batch's rows.

    With `whole`, the logits of all tokens after the prompt are kept.
    """
    logits = _single(logits)
    present = batch.choices >= 0
    tokens = batch.choices.clamp(min=0).to(logits.device)
    rows = batch.row_of.to(logits.device)
    step = torch.arange(batch.steps, device=logits.device)
    said = logits[..., rows[:, :, None], step, tokens]
    best, total = logits.argmax(-1), logits.logsumexp(-1)
    logprob = (said - total[..., rows, :]).where(present.to(logits.device), 0.0).sum(-1)
    # As greedy decoding breaks ties: a model of zeros gives token 0, not every answer.
    right = (tokens == best[..., rows, :]) | ~present.to(logits.device)
    real = present[:, :, 0]
    return Scores(
        logprob=logprob.where(real.to(logits.device), -torch.inf).cpu(),
        greedy=right.all(-1).cpu() & real,
        right=batch.right,
        present=real,
        tokens=batch.choices[:, :, 0],
        logits=after_prompt(logits, batch).cpu() if whole else None,
        clean=batch.reference if whole else None,
    )


def after_prompt(
    logits: Float[Tensor, "*variant row steps vocab"], batch: Batch
) -> Float[Tensor, "*variant batch vocab"]:
    """The logits at the last token of each prompt."""
    first = batch.row_of[:, 0].to(logits.device)
    return logits[..., 0, :] if len(first) == logits.shape[-3] else logits[..., first, 0, :]


def answer_tokens(batch: Batch) -> Int[Tensor, " vocab"]:
    """The tokens of all answers, each once, sorted."""
    return batch.choices[batch.choices >= 0].unique()


def score_answers(logits: Float[Tensor, "*variant row vocab"], batch: Batch) -> Scores:
    """Scores for relative metrics from the logits of the `answer_tokens` alone.

    Log probabilities lack a term that all answers share; what greedy decoding gives is unknown.
    """
    tokens = torch.searchsorted(answer_tokens(batch), batch.choices[:, :, 0]).to(logits.device)
    said = _single(logits)[..., batch.row_of.to(logits.device), tokens].cpu()
    real = batch.choices[:, :, 0] >= 0
    return Scores(
        logprob=said.where(real, -torch.inf),
        greedy=torch.zeros_like(said, dtype=torch.bool),
        right=batch.right,
        present=real,
        tokens=batch.choices[:, :, 0],
    )


def logit_diff(s: Scores) -> Float[Tensor, "*variant batch"]:
    """Mean log probability of the answers minus that of the wrong ones, in nats; 0 is even odds."""
    return _mean(s, s.right) - _mean(s, s.present & ~s.right)


def logit_diff_max(s: Scores) -> Float[Tensor, "*variant batch"]:
    """Log probability of the best answer minus that of the best wrong one, in nats."""
    return _best(s, s.right) - _best(s, s.present & ~s.right)


def prob_diff(s: Scores) -> Float[Tensor, "*variant batch"]:
    """Total probability of the answers minus that of the wrong ones, from -1 to 1."""
    probability = s.logprob.exp()
    return (probability * s.right).sum(-1) - (probability * (s.present & ~s.right)).sum(-1)


def logprob(s: Scores) -> Float[Tensor, "*variant batch"]:
    """Log probability that one of the answers follows, in nats; at most 0."""
    return s.logprob.where(s.right, -torch.inf).logsumexp(-1)


def accuracy(s: Scores) -> Float[Tensor, "*variant batch"]:
    """1 where the best answer is more likely than every wrong one, else 0.

    Without wrong answers the same as top1.
    """
    return torch.where((s.present & ~s.right).any(-1), (logit_diff_max(s) > 0).float(), top1(s))


def top1(s: Scores) -> Float[Tensor, "*variant batch"]:
    """1 where greedy decoding, over all tokens, gives an answer, else 0."""
    return (s.greedy & s.right).any(-1).float()


def kl(s: Scores) -> Float[Tensor, "*variant batch"]:
    """Minus the KL divergence from the clean run's next-token distribution, in nats; at most 0."""
    assert s.logits is not None
    assert s.clean is not None
    clean, now = s.clean.log_softmax(-1), s.logits.log_softmax(-1)
    gap = torch.where(clean.isneginf(), 0.0, now - clean)  # a token that is ruled out adds nothing
    return (clean.exp() * gap).sum(-1)


METRICS = Table(
    "metric",
    Metric,
    (
        Metric("logit_diff", logit_diff, "logit difference", relative=True, contrast=True),
        Metric(
            "logit_diff_max",
            logit_diff_max,
            "logit difference to the best wrong answer",
            relative=True,
            contrast=True,
        ),
        Metric("prob_diff", prob_diff, "probability difference"),
        Metric("logprob", logprob, "log probability of the answer"),
        Metric("accuracy", accuracy, "accuracy (against the wrong answers)", True, smooth=False),
        Metric("top1", top1, "accuracy (against all tokens)", smooth=False),
        Metric("kl", kl, "negative KL divergence from the clean run", whole=True, flat=True),
    ),
    adopt=lambda name, function: _own(function, name),
)


def register_metric(
    name: str,
    *,
    label: str | None = None,
    relative: bool = False,
    smooth: bool = True,
    replace: bool = False,
) -> Callable[[Callable[[Scores], Tensor]], Callable[[Scores], Tensor]]:
    """Register your own metric, as a decorator of its function.

    The function takes `Scores` and returns a value per variant and prompt, larger where the model
    does better. `scores.logits` are the logits of all tokens after the prompt, `scores.clean` those
    of the clean run, `scores.logprob` the log probability of each answer; everything has leading
    dimensions for variants, so reduce only the last one. The metric then works wherever a metric's
    name does. Without registering it, pass the function itself as `metric`.

    Args:
        name: what the metric is called
        label: its name on an axis; default: the first line of its docstring
        relative: it only compares `logprob` of answers with each other: faster, and sees no logits
        smooth: it has gradients, which attribution methods need
        replace: replace a metric of that name, for example when a notebook cell is run again

    Returns:
        The decorator, which returns the function unchanged.

    >>> import mechheads, tasks
    >>> @mechheads.register_metric("sureness", replace=True)
    ... def sureness(scores):
    ...     return scores.logits.softmax(-1).max(-1).values
    >>> model = mechheads.load("mini")
    >>> found = mechheads.evaluate(model, tasks.make("ioi", model, n=4), "sureness", quiet=True)
    >>> 0 < found.headline["sureness"] <= 1
    True
    """

    def add(function: Callable[[Scores], Tensor]) -> Callable[[Scores], Tensor]:
        METRICS.register(_own(function, name, label, relative, smooth), replace=replace)
        return function

    return add


def find(metric: Any) -> Metric:
    """The metric of that name, or a function as a metric; anything else raises an error."""
    if isinstance(metric, Metric):
        return metric
    if not isinstance(metric, str):
        return _own(metric, getattr(metric, "__name__", type(metric).__name__))
    if metric not in METRICS:
        raise unknown("metric", metric, METRICS)
    return METRICS[metric]


def choose(metric: MetricLike | None, prompts: Prompts) -> Metric:
    """The given metric, or the task's own; an error if the prompts lack the answers it needs."""
    check_given(prompts)
    found = find(metric or prompts.metric)
    lacking = next((pair for pair in prompts.pairs if not pair.wrong), None)
    if found.contrast and lacking is not None:
        where = lacking.source or f"A prompt of {prompts.task} ({lacking.clean[:36]!r})"
        raise MechheadsError(
            f"{where} has no wrong answer, which {found.name} needs. Add one, or use the metric "
            "logprob."
        )
    return found


def label_of(name: str) -> str:
    """A metric's name on an axis; your own metric may not be registered here."""
    return METRICS[name].label if name in METRICS else name.replace("_", " ")


def check_name(name: str) -> None:
    """Raise a ValueError if no metric can be called that; it may be of another session."""
    if not NAME.fullmatch(name):
        raise ValueError(f"{name[:40]!r} is not the name of a metric")


def _own(
    function: Any,
    name: str,
    label: str | None = None,
    relative: bool = False,
    smooth: bool = True,
) -> Metric:
    """A user's function as a metric."""
    if not callable(function):
        raise MechheadsError(
            f"A metric is a name or a function of Scores, got {type(function).__name__}. "
            f"Names: {', '.join(METRICS)}."
        )
    own: Any = function
    shown = "own_metric" if name == "<lambda>" else name
    words = label or (getdoc(own) or "").partition("\n")[0].rstrip(".")
    words = words or shown.replace("_", " ")
    if words[1:2].islower() and not label:  # it stands in the middle of sentences
        words = words[0].lower() + words[1:]
    return Metric(shown, own, words, relative, smooth, whole=not relative)


def _single(logits: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Convert half precision to single."""
    return logits if logits.dtype == torch.float64 else logits.float()


def _mean(s: Scores, which: Bool[Tensor, "batch choice"]) -> Float[Tensor, "*variant batch"]:
    return s.logprob.where(which, 0.0).sum(-1) / which.sum(-1)


def _best(s: Scores, which: Bool[Tensor, "batch choice"]) -> Float[Tensor, "*variant batch"]:
    return s.logprob.where(which, -torch.inf).max(-1).values
