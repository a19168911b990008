"""Records without `wrong` or `corrupt`: fine where nothing that is measured needs them."""

import json

import pytest
import torch

import circuits
import mechheads
import tasks
from mechheads import MechheadsError
from mechheads.prompts import Prompts


def records(model, *left_out: str, n: int = 16, **more):
    """IOI as records without some fields."""
    for pair in tasks.make("ioi", model, n=n):
        record = {
            "clean": pair.clean,
            "corrupt": pair.corrupt,
            "answer": pair.answers[0],
            "wrong": pair.wrong[0],
            **more,
        }
        yield {key: value for key, value in record.items() if key not in left_out}


@pytest.fixture(scope="module")
def mini():
    return mechheads.load("mini")


def test_without_wrong_answers_the_metric_is_the_log_probability(mini):
    prompts = tasks.from_records(records(mini, "wrong"))
    assert prompts.metric == "logprob"
    found = mechheads.evaluate(mini, prompts, quiet=True)
    whole = mechheads.evaluate(mini, tasks.from_records(records(mini)), "logprob", quiet=True)
    assert torch.equal(found.clean["logprob"], whole.clean["logprob"])
    assert "logit_diff" not in found.clean
    assert torch.equal(found.clean["accuracy"], found.clean["top1"])
    assert found.chance == 0
    effects = mechheads.score_heads(mini, prompts, "patch", quiet=True)
    assert effects.metric == "logprob"


@pytest.mark.parametrize("metric", ["logit_diff", "logit_diff_max"])
def test_a_metric_that_needs_wrong_answers_says_so(metric, mini):
    prompts = tasks.from_records(records(mini, "wrong"))
    with pytest.raises(MechheadsError, match=rf"Record 1 of own has no wrong answer, .*{metric}"):
        mechheads.score_heads(mini, prompts, "patch", metric, quiet=True)


@pytest.mark.parametrize("replacement", ["zero", "mean"])
def test_without_corrupted_prompts_heads_can_be_ablated(replacement, mini, tmp_path):
    bare = tasks.from_records(records(mini, "corrupt", "wrong"))
    given: dict = {"replacement": replacement, "draws": 2, "quiet": True}
    found = circuits.discover(mini, bare, **given)
    assert found.headline["metric_corrupt"] is None
    assert found.report(tmp_path).exists()
    assert "corrupt " not in (tmp_path / "report.md").read_text().partition("Prompts")[2]
    if replacement == "zero":  # needs no other run: the same as with corrupted prompts
        whole = tasks.from_records(records(mini), metric="logprob")
        again = circuits.discover(mini, whole, **given)
        assert torch.equal(found.effects.values, again.effects.values)
        assert torch.equal(found.curve.values, again.curve.values)


def test_the_mean_without_corrupted_prompts_is_that_of_the_clean_ones(mini):
    bare = tasks.from_records(records(mini, "corrupt"))
    swapped = [dict(r, corrupt=r["clean"], clean=r["corrupt"]) for r in records(mini)]
    # The corrupted prompts of the second task are the clean ones of the first.
    means = [
        mechheads.score_heads(mini, prompts, "patch", replacement="mean", quiet=True)
        for prompts in (bare, tasks.from_records(swapped))
    ]
    assert not torch.allclose(means[0].values, means[1].values)
    assert means[0].values.abs().max() > 0


@pytest.mark.parametrize("method", ["patch", "attribution", "ig", "hybrid", "path"])
def test_what_needs_corrupted_prompts_says_so(method, mini):
    bare = tasks.from_records(records(mini, "corrupt"))
    with pytest.raises(MechheadsError, match=r"Record 1 of own has no corrupted prompt.*zero"):
        mechheads.score_heads(mini, bare, method, quiet=True)


def test_a_misspelt_optional_field_is_an_error(mini):
    wrong = [dict(r, corupt="x") for r in records(mini, "corrupt")]
    with pytest.raises(MechheadsError, match=r"'corrupt' is missing\. Did you mean 'corupt'"):
        tasks.from_records(wrong)


def test_other_fields_are_ignored_and_groups_kept_together(mini):
    rows = [dict(r, id=i, note="mine", group=str(i // 4)) for i, r in enumerate(records(mini))]
    one, two = tasks.from_records(rows).halves()
    assert not {pair.group for pair in one} & {pair.group for pair in two}


def test_from_the_command_line(mini, tmp_path):
    from mechheads.discover import discover

    file = tmp_path / "bare.jsonl"
    file.write_text("\n".join(json.dumps(r) for r in records(mini, "corrupt", "wrong", n=16)))
    given: dict = {"task": str(file), "out": str(tmp_path / "runs"), "quiet": True, "draws": 2}
    with pytest.raises(MechheadsError, match=r"line \d+ has no corrupted prompt"):
        discover(**given)
    assert not list((tmp_path / "runs").glob("*"))
    result, _ = discover(**given, replacement="zero")
    assert isinstance(result.circuit.heads, tuple)


def test_an_answer_is_always_needed():
    with pytest.raises(MechheadsError, match="'answer' is missing"):
        tasks.from_records([{"clean": "a"}])
    assert isinstance(tasks.from_records([{"clean": "a", "answer": " b"}]), Prompts)
