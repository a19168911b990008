import math
import random
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from mechheads import MechheadsError
from mechheads.models.load import load
from mechheads.prompts.lexicon import tokenizer_lexicon
from mechheads.training.data import echoes, examples, rows, task_batches
from mechheads.training.pretraining import (
    Recipe,
    Work,
    accuracies,
    build_tokenizer,
    new_model,
    pace,
    train,
)
from mechheads.training.workers import start
from tasks.curriculum import COUNTS, echoed_words, held_out_pairs, shares, texts

SMALL = Recipe(layers=1, heads=2, width=16, steps=3, last=1, warm_up=2, dropout_from=0.4, workers=1)


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer(texts())


def worker_batches(worker, workers):
    """Two prompts of every task for each worker; other processes import this by name."""
    tokenizer = build_tokenizer(texts())
    lexicon = tokenizer_lexicon(tokenizer, "mini")
    few = {name: replace(share, count=2) for name, share in shares(lexicon).items()}
    return task_batches(
        tokenizer, few, f"{worker} of {workers}", repeated=echoed_words(lexicon), n_repeated=2
    )


@pytest.fixture(scope="module")
def tests(tokenizer):
    return held_out_pairs(tokenizer_lexicon(tokenizer, "mini"), 4)


def test_words_numbers_and_letters_are_single_tokens_and_any_text_comes_back(tokenizer):
    assert len(tokenizer) <= 3000
    split = tokenizer_lexicon(tokenizer, "mini").split
    for word in (" Mary", " 17", " 0", " 99", " files", " A", " walked", " Paris"):
        assert len(split(word)) == 1, word
    assert len(split(" 1732")) == 2
    text = 'Zürich, "naïve" 12345\n\n    def f(x): …'
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_every_task_is_in_the_curriculum():
    from tasks import TASKS

    assert set(COUNTS) == set(TASKS.builtin)


def test_weights_are_one_on_answers_and_a_tenth_elsewhere(tokenizer):
    (part,) = rows(tokenizer, [("Then, Mary", " John"), ("The war", " 17")], groups=1)
    assert part.tokens.shape == part.weights.shape
    for row, weights in zip(part.tokens, part.weights, strict=True):
        assert row[0] == 0
        assert weights[0] == 0
        assert tokenizer.decode(row[weights == 1]) in (" John", " 17")
        assert tokenizer.decode(row[(weights > 0) & (weights < 1)]) in ("Then, Mary", "The war")


@pytest.mark.parametrize(
    ("prompt", "answer", "weighty"),
    [
        ("Question: car\nAnswer: cars\n\nQuestion: child\nAnswer:", " children", " cars children"),
        (
            "Question: A?\nAnswer: Anna is in the bank\n\nQuestion: B?\nAnswer: Tom is in the",
            " park",
            " bank park",
        ),
        (
            "\n    :param size: of it\n    :param name: for it\n    :param",
            " path",
            " name path",
        ),
    ],
)
def test_solved_examples_weigh_as_much_as_the_answer(prompt, answer, weighty, tokenizer):
    (part,) = rows(tokenizer, [(prompt, answer)], groups=1)
    assert tokenizer.decode(part.tokens[part.weights == 1]) == weighty
    assert tokenizer.decode(part.tokens[part.asked]) == answer


def test_repeated_words_weigh_where_they_can_be_known():
    shuffled = 0
    for part in echoes(range(10, 90), random.Random(0), 7, 40):
        for row, weights in zip(part.tokens.tolist(), part.weights, strict=True):
            known = weights.nonzero()[:, 0].tolist()
            n = 1 + max(known)
            own, again = row[1 : (n + 1) // 2], row[(n + 1) // 2 : n]
            assert row[0] == 7
            assert sorted(own) == sorted(again)
            # What is asked for follows the words that it followed before.
            size = known[1] - known[0]
            for i in known:
                before = row[max((n + 1) // 2, i + 1 - size) : i + 1]
                assert any(own[j : j + len(before)] == before for j in range(len(own)))
            shuffled += own != again
    assert 5 < shuffled < 30


def test_a_quarter_of_the_years_begin_as_corrupted_prompts_do(tokenizer):
    share = replace(shares(tokenizer_lexicon(tokenizer, "mini"))["greater_than"], count=400)
    drawn = examples(share, random.Random(0))
    first = [int(answer) for prompt, answer in drawn if re.search(r"year \d\d01 to", prompt)]
    assert 60 < len(first) < 140
    assert min(first) >= 2
    assert max(first) > 90


def test_undecided_prompts_are_answered_by_a_name_that_they_hold(tokenizer):
    few = shares(tokenizer_lexicon(tokenizer, "mini"))
    share = replace(few["ioi"], undecided=1.0, count=40)
    for prompt, answer in examples(share, random.Random(0)):
        assert prompt.count(answer) == 1


def test_repeated_words_stand_anywhere_in_the_context_behind_their_first_token():
    begins = set()
    for part in echoes(range(10, 90), random.Random(0), 7, 40, context=64):
        assert part.positions is not None
        assert (part.positions[:, 0] == 0).all()
        assert (part.positions[:, 1:].diff() == 1).all()
        assert part.positions.max() < 64
        begins |= set(part.positions[:, 1].tolist())
    assert len(begins) > 10
    plain = echoes(range(10, 90), random.Random(0), 7, 4)
    for part in plain:
        assert part.positions is not None
        assert torch.equal(part.positions[0], torch.arange(part.tokens.shape[1]))


def test_the_rate_warms_up_and_falls_in_steps():
    recipe = Recipe(steps=1000, last=100, warm_up=100)
    paces = [pace(recipe, step) for step in range(1100)]
    assert paces[0] < paces[50] < paces[100] == paces[349] == 1.0
    assert paces[350] == paces[499] == pytest.approx(1 / 3)
    assert paces[500] == paces[799] == pytest.approx(1 / 7)
    assert paces[799] > paces[900] > paces[999]
    assert paces[999] < 0.03
    assert paces[1000] == paces[1039] == pytest.approx(1 / 7)
    assert paces[1039] > paces[1070] > paces[1099]
    assert paces[1099] < 0.03


def test_a_run_that_was_stopped_and_resumed_ends_with_the_same_weights(tokenizer, tests, tmp_path):
    whole = train(worker_batches, tests, tokenizer, SMALL, tmp_path / "whole", quiet=True)
    train(worker_batches, tests, tokenizer, SMALL, tmp_path / "parts", stop_after=3, quiet=True)
    resumed = train(worker_batches, tests, tokenizer, SMALL, tmp_path / "parts", quiet=True)
    for (name, one), two in zip(whole.named_parameters(), resumed.parameters(), strict=True):
        assert torch.equal(one, two), name
    log = (tmp_path / "parts" / "training" / "log.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in log] == ["step", "3", "4"]


def test_two_workers_add_their_gradients_up(tokenizer, tests, tmp_path):
    recipe = replace(SMALL, workers=2, steps=1, dropout=0.0)
    work = Work(recipe, len(tokenizer), worker_batches)
    model = new_model(recipe, len(tokenizer))
    with start(work.make_worker, list(model.parameters()), 2) as both:
        loss, weight = both.step(0)
        found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    by_hand, sums = [torch.zeros_like(p) for p in model.parameters()], [0.0, 0.0]
    for worker in (0, 1):
        parameters, compute = work.make_worker(worker)
        sums = [a + b for a, b in zip(sums, compute(0), strict=True)]
        by_hand = [
            a + (0 if p.grad is None else p.grad) for a, p in zip(by_hand, parameters, strict=True)
        ]
    assert [loss, weight] == pytest.approx(sums, rel=1e-5)
    for one, two in zip(found, by_hand, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-4)
    whole = train(worker_batches, tests, tokenizer, recipe, tmp_path, quiet=True)
    changed = [not torch.equal(a, b) for a, b in zip(whole.parameters(), by_hand, strict=True)]
    assert all(changed)


def broken_course(worker, workers):
    """The second worker cannot begin."""
    if worker:
        raise ValueError
    return worker_batches(worker, workers)


def test_a_worker_that_stops_is_told(tokenizer, tests, tmp_path):
    recipe = replace(SMALL, workers=2)
    with pytest.raises(MechheadsError, match=r"A worker stopped\. Run it again to resume"):
        train(broken_course, tests, tokenizer, recipe, tmp_path, quiet=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"workers": 0}, "--workers takes 1 or more, got 0"),
        ({"steps": 0}, "--steps takes 1 or more, got 0"),
        ({"last": -1}, "--last takes 0 or more, got -1"),
        ({"width": 17}, "--width 17 is not a multiple of --heads 2"),
        ({"width": 32}, r"was made with --width 16, not 32\. Resume with the same settings"),
    ],
)
def test_settings_that_cannot_be_are_named(changes, message, tokenizer, tests, tmp_path):
    train(worker_batches, tests, tokenizer, SMALL, tmp_path, stop_after=1, quiet=True)
    with pytest.raises(MechheadsError, match=message):
        train(worker_batches, tests, tokenizer, replace(SMALL, **changes), tmp_path, quiet=True)


def test_a_checkpoint_of_other_words_is_refused(tokenizer, tests, tmp_path):
    few = build_tokenizer(["a few words"])
    train(few_words, {}, few, SMALL, tmp_path, stop_after=1, quiet=True)
    with pytest.raises(MechheadsError, match=r"from a different model: its transformer.wte.weight"):
        train(worker_batches, tests, tokenizer, SMALL, tmp_path, quiet=True)


def few_words(worker, workers):
    """Rows of a small vocabulary."""
    return lambda step: echoes(range(5, 50), random.Random(step), 0, 4)


def test_a_folder_that_cannot_be_written_is_named(tokenizer, tests, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(MechheadsError, match=r"cannot write to .*Choose a different --out"):
        train(worker_batches, tests, tokenizer, SMALL, tmp_path / "file", quiet=True)


def test_training_lowers_the_loss_and_gives_a_model_that_loads(tokenizer, tests, tmp_path):
    recipe = replace(SMALL, steps=30, rate=1e-2, rate_others=1e-2)
    train(worker_batches, tests, tokenizer, recipe, tmp_path, save_every=10, quiet=True)
    last = (tmp_path / "training" / "log.csv").read_text().splitlines()[-1]
    assert float(last.split(",")[2]) < 6.5 < math.log(len(tokenizer))
    model = load(str(tmp_path))
    assert (model.cfg.n_layers, model.cfg.n_heads, model.cfg.n_ctx) == (1, 2, 128)


@pytest.mark.parametrize("right", [True, False])
def test_accuracy_counts_whole_answers(right, tokenizer, tests, monkeypatch):
    def parrot(tokens):
        """Says every next token, or anything but the next token."""
        said = torch.nn.functional.one_hot(tokens.roll(-1, 1), len(tokenizer)).float()
        return SimpleNamespace(logits=said if right else -said)

    model = new_model(SMALL, len(tokenizer))
    monkeypatch.setattr(model, "forward", parrot)
    assert set(accuracies(model, tokenizer, tests).values()) == {float(right)}
