import math
from dataclasses import replace

import pytest
import torch

import tasks
from mechheads import METRICS
from mechheads.observe.evaluation import Evaluation, _unspaced, evaluate
from mechheads.prompts import Pair, Prompts, TokenIds


def evaluation(accuracy, top1=1.0, clean=1.0, corrupt=0.0, chance=0.5, n=10, unspaced=""):
    def column(share):
        return torch.tensor([1.0] * round(share * n) + [0.0] * (n - round(share * n)))

    return Evaluation(
        task="ioi",
        model="m",
        metric="logit_diff",
        clean={
            "logit_diff": torch.full((n,), clean),
            "accuracy": column(accuracy),
            "top1": column(top1),
        },
        corrupt={"logit_diff": torch.full((n,), corrupt), "accuracy": column(0), "top1": column(0)},
        chance=chance,
        unspaced=unspaced,
    )


def test_a_model_that_does_the_task_gets_no_warning():
    assert evaluation(accuracy=0.9).warning is None
    assert evaluation(accuracy=0.7, chance=0.1).warning is None


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (
            {"accuracy": 0.7},
            "cannot do ioi: it prefers the right answer on 70% of the prompts, where chance is 50%",
        ),
        ({"accuracy": 0.9, "clean": 0.0}, "no better on the clean prompts"),
        ({"accuracy": 0.9, "top1": 0.3}, "outputs it on only 30% of the prompts"),
    ],
)
def test_a_model_that_cannot_do_the_task_gets_a_warning(case, words):
    assert words in (evaluation(**case).warning or "")


def test_a_missing_space_is_hinted_at_if_the_answer_is_never_the_output():
    words = "The answers do not begin with a space: ' Mary' and 'Mary' are different tokens."
    for never in (
        evaluation(1.0, top1=0.0, unspaced="Mary"),
        evaluation(0.5, top1=0.0, unspaced="Mary"),  # it may seem to fail the task
        evaluation(1.0, clean=0.0, top1=0.0, unspaced="Mary"),
    ):
        assert words in (never.warning or "")
    for other in (evaluation(1.0, top1=0.0), evaluation(1.0, top1=0.3, unspaced="Mary")):
        assert "space" not in (other.warning or "")
    assert evaluation(1.0, unspaced="Mary").warning is None


@pytest.mark.parametrize(
    ("clean", "answer", "unspaced"),
    [
        ("Mary gave a book to", "John", "John"),
        ("Q: Who?\nA:", "John", "John"),
        ("Mary gave a book to", " John", ""),
        ("Mary gave a book to ", "John", ""),
        ("The year 17", "45", ""),
        ("1+2=", "3", ""),
        ("Mary gave a book to", ".", ""),
        (TokenIds("1 2"), TokenIds("3"), ""),
    ],
)
def test_answers_lack_a_space_only_where_a_word_follows_a_word(clean, answer, unspaced):
    prompts = Prompts("own", "logit_diff", (Pair(clean, clean, (answer,), (answer,)),) * 2)
    assert _unspaced(prompts) == unspaced


def test_evaluating_notices_answers_without_a_space(tiny):
    made = tasks.make("ioi", tiny, n=4)
    assert evaluate(tiny, made).unspaced == ""
    bare = tuple(replace(pair, answers=("3",), wrong=("4",)) for pair in made.pairs)
    assert evaluate(tiny, replace(made, pairs=bare)).unspaced == "3"


def test_frame_is_tidy_and_summary_has_mean_and_error(tiny):
    prompts = tasks.make("ioi", tiny, n=12)
    result = evaluate(tiny, prompts)
    frame = result.frame()
    assert list(frame.columns) == ["prompt", "side", "metric", "value"]
    assert len(frame) == 12 * 2 * len(METRICS.builtin)
    row = result.summary().iloc[0]
    values = frame.query("side == 'clean' and metric == 'logit_diff'").value
    assert row.clean == pytest.approx(values.mean(), abs=1e-5)
    assert row.clean_se == pytest.approx(values.std() / math.sqrt(12), abs=1e-5)


def test_chance_is_the_share_of_right_answers(tiny):
    assert evaluate(tiny, tasks.make("ioi", tiny, n=4)).chance == 0.5
    prompts = tasks.make("greater_than", tiny, n=1)
    assert evaluate(tiny, prompts).chance == len(prompts.pairs[0].answers) / 100


def test_order_of_prompts_is_kept_across_batches_of_several_lengths(tiny):
    prompts = tasks.make("ioi", tiny, n=12)
    whole = evaluate(tiny, prompts).clean["logit_diff"]
    for i, pair in enumerate(prompts.pairs):
        alone = evaluate(tiny, type(prompts)("ioi", "logit_diff", (pair,))).clean["logit_diff"]
        assert whole[i].item() == pytest.approx(alone.item(), abs=1e-4)


def test_evaluating_leaves_no_hooks_and_no_gradients(tiny):
    evaluate(tiny, tasks.make("ioi", tiny, n=3))
    assert not any(point.fwd_hooks for point in tiny.hook_dict.values())
    assert all(p.grad is None for p in tiny.parameters())


@pytest.mark.shared
def test_tinystories_does_ioi_with_names_from_its_stories(tinystories):
    names = "Tom,Tim,Ben,Sue,Max,Sam,Jack,Anna,Lucy,Amy,Mary,John,Bob,Jane"
    prompts = tasks.make("ioi", tinystories, n=100, names=names)
    assert evaluate(tinystories, prompts).clean["accuracy"].mean() > 0.9


@pytest.mark.smollm2
def test_smollm2_does_ioi():
    from mechheads import load

    model = load("smollm2")
    result = evaluate(model, tasks.make("ioi", model, n=32))
    assert result.clean["accuracy"].mean() > 0.9
    assert result.corrupt["accuracy"].mean() < 0.8
    assert result.warning is None
