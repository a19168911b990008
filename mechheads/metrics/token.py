"""How well a model answers: every metric is a function of the same scores.

`score` turns the logits at the end of each row into the log probability of every answer, a sum
over its tokens. For single-token answers, a difference of log probabilities is the difference of
their logits, so `logit_diff` works for answers of any length.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechheads.errors import unknown
from mechheads.prompts.batches import Batch


@dataclass(frozen=True)
class Scores:
    """The log probability of each answer (-inf where there is none).

    `greedy` is whether greedy decoding gives every token of the answer.
    """

    logprob: Float[Tensor, "*variant batch choice"]
    greedy: Bool[Tensor, "*variant batch choice"]
    right: Bool[Tensor, "batch choice"]
    present: Bool[Tensor, "batch choice"]


@dataclass(frozen=True)
class Metric:
    """A number per prompt, larger where the model does better. `label` is its name on an axis.

    A relative metric only compares answers with each other and needs only their logits. A smooth
    one has gradients.
    """

    name: str
    function: Callable[[Scores], Float[Tensor, "*variant batch"]]
    label: str
    relative: bool = False
    smooth: bool = True

    def __call__(self, scores: Scores) -> Float[Tensor, "*variant batch"]:
        """The metric of every prompt."""
        return self.function(scores)


def score(logits: Float[Tensor, "*variant row steps vocab"], batch: Batch) -> Scores:
    """The scores of all answers from the logits at the last positions of the batch's rows."""
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
    )


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
    """1 where the best answer is more likely than every wrong one, else 0."""
    return (logit_diff_max(s) > 0).float()


def top1(s: Scores) -> Float[Tensor, "*variant batch"]:
    """1 where greedy decoding, over all tokens, gives an answer, else 0."""
    return (s.greedy & s.right).any(-1).float()


METRICS = {
    metric.name: metric
    for metric in (
        Metric("logit_diff", logit_diff, "logit difference", relative=True),
        Metric(
            "logit_diff_max",
            logit_diff_max,
            "logit difference to the best wrong answer",
            relative=True,
        ),
        Metric("prob_diff", prob_diff, "probability difference"),
        Metric("logprob", logprob, "log probability of the answer"),
        Metric("accuracy", accuracy, "accuracy (against the wrong answers)", True, smooth=False),
        Metric("top1", top1, "accuracy (against all tokens)", smooth=False),
    )
}


def find(name: str) -> Metric:
    """The metric of that name; an unknown name raises an error with suggestions."""
    if name not in METRICS:
        raise unknown("metric", name, METRICS)
    return METRICS[name]


def _single(logits: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Convert half precision to single."""
    return logits if logits.dtype == torch.float64 else logits.float()


def _mean(s: Scores, which: Bool[Tensor, "batch choice"]) -> Float[Tensor, "*variant batch"]:
    return s.logprob.where(which, 0.0).sum(-1) / which.sum(-1)


def _best(s: Scores, which: Bool[Tensor, "batch choice"]) -> Float[Tensor, "*variant batch"]:
    return s.logprob.where(which, -torch.inf).max(-1).values
