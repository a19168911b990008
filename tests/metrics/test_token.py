"""Every metric against a loop that follows its definition, one full forward pass per answer."""

import math

import pytest
import torch

import tasks
from mechheads import METRICS, MechheadsError, evaluate, metrics
from mechheads.models.model import encoder_of
from mechheads.prompts import Pair, Prompts


def brute_force(model, prompt, answers, wrong):
    """Log probability of each answer, and whether the model would say it, token by token."""

    def one(answer):
        tokens = list(encoder_of(model).ids(prompt))
        end = encoder_of(model).ids(prompt + answer)[len(tokens) :]
        total, said = 0.0, True
        for token in end:
            logits = model(torch.tensor([tokens]))[0, -1]
            total += logits.log_softmax(-1)[token].item()
            said = said and int(logits.argmax()) == token
            tokens.append(token)
        return total, said

    right, other = [one(a) for a in answers], [one(w) for w in wrong]
    good, bad = [p for p, _ in right], [p for p, _ in other]
    return {
        "logit_diff": sum(good) / len(good) - sum(bad) / len(bad),
        "logit_diff_max": max(good) - max(bad),
        "prob_diff": sum(map(math.exp, good)) - sum(map(math.exp, bad)),
        "logprob": math.log(sum(map(math.exp, good))),
        "accuracy": float(max(good) > max(bad)),
        "top1": float(any(said for _, said in right)),
    }


def compare(model, prompts):
    evaluation = evaluate(model, prompts)
    with torch.inference_mode():
        for i, pair in enumerate(prompts.pairs):
            for side, text in ((evaluation.clean, pair.clean), (evaluation.corrupt, pair.corrupt)):
                expected = brute_force(model, text, pair.answers, pair.wrong)
                for name, value in expected.items():
                    assert side[name][i].item() == pytest.approx(value, abs=2e-4), name


@pytest.mark.parametrize("task", ["ioi", "math"])
def test_metrics_equal_a_loop_over_answers(task, tiny):
    compare(tiny, tasks.make(task, tiny, n=6))


def test_greater_than_with_digit_tokens_equals_a_loop_over_all_hundred_years(tiny):
    compare(tiny, tasks.make("greater_than", tiny, n=2))


def test_answers_of_several_lengths_are_scored_in_one_batch(tiny):
    pair = Pair("The Mary and", "The John and", (" 1", " 23"), (" 456", " Anna", " 24"))
    compare(tiny, Prompts("own", "logit_diff", (pair,)))


@pytest.mark.shared
def test_metrics_of_a_real_model_equal_a_loop_over_answers(tinystories):
    compare(tinystories, tasks.make("docstring", tinystories, n=2))


def scores(right, wrong, greedy=False):
    values = torch.tensor([[*right, *wrong, -math.inf]])
    real = torch.tensor([[True] * (values.shape[1] - 1) + [False]])
    return metrics.Scores(
        logprob=values,
        greedy=torch.tensor([[greedy] + [False] * (values.shape[1] - 1)]),
        right=torch.tensor([[True] * len(right) + [False] * (len(wrong) + 1)]),
        present=real,
        tokens=torch.arange(values.shape[1])[None],
    )


def test_metrics_on_a_case_worked_out_by_hand():
    log = math.log
    case = scores([log(0.5), log(0.125)], [log(0.25)], greedy=True)
    expected = {
        "logit_diff": (log(0.5) + log(0.125)) / 2 - log(0.25),
        "logit_diff_max": log(2),
        "prob_diff": 0.5 + 0.125 - 0.25,
        "logprob": log(0.625),
        "accuracy": 1.0,
        "top1": 1.0,
    }
    found = {name: METRICS[name](case).item() for name in expected}
    assert found == pytest.approx(expected, abs=1e-6)
    assert {*expected, "kl"} == set(METRICS.builtin)
    assert METRICS["accuracy"](scores([log(0.1)], [log(0.3)])).item() == 0.0
    assert METRICS["accuracy"](scores([log(0.3)], [log(0.3)])).item() == 0.0


def test_the_names_of_metrics_in_the_help_text_are_those_of_the_table():
    from mechheads.show import show

    assert all(name in (show.__doc__ or "") for name in METRICS.builtin)
    assert all(task.metric in METRICS for task in tasks.TASKS.values())


def test_an_unknown_metric_is_named():
    with pytest.raises(
        MechheadsError, match=r"Unknown metric 'logits'\. Did you mean 'logit_diff'"
    ):
        metrics.find("logits")
