import json

import checkpoints
import pytest
import torch

import tasks
from circuits import discover
from mechheads import MechheadsError, load
from mechheads.models.model import encoder_of
from mechheads.observe.evaluation import evaluate
from mechheads.prompts import Pair, Prompts
from mechheads.prompts.batches import batches


def made(model, *pairs, **options):
    return list(batches(encoder_of(model), Prompts("own", "logit_diff", pairs), **options))


NAMES = Pair("The Mary and John", "The Anna and John", (" Mary",), (" John",))
LONGER = Pair("The Mary and John to", "The Anna and John to", (" Mary",), (" John",))


def test_one_token_answers_need_one_row_per_prompt(tiny):
    (batch,) = made(tiny, NAMES, NAMES)
    assert batch.clean.shape == batch.corrupt.shape == (2, 5)
    assert batch.steps == 1
    assert batch.differs.tolist() == [[False, False, True, False, False]] * 2


def test_prompts_of_other_lengths_go_into_other_batches_and_are_never_padded(tiny):
    first, second = made(tiny, LONGER, NAMES, LONGER)
    assert (first.clean.shape, second.clean.shape) == ((1, 5), (2, 6))
    assert (first.pairs.tolist(), second.pairs.tolist()) == ([1], [0, 2])


def test_rows_stay_below_the_budget(tiny):
    shapes = [tuple(b.clean.shape) for b in made(tiny, *[NAMES] * 7, max_tokens=10)]
    assert shapes == [(2, 5), (2, 5), (2, 5), (1, 5)]


def test_answers_that_share_a_beginning_share_a_row(tiny):
    pair = Pair("The Mary", "The John", (" 12", " 13", " 2"), (" 145", " 21"))
    (batch,) = made(tiny, pair)
    text = tiny.tokenizer.decode
    # After the prompt: " 1", " 1" + "4" and " 2" must be seen; " 1" is the start of " 1" + "4".
    rows = {text(row[3:]) for row in batch.clean}
    assert len(batch.clean) == 2
    assert any(r.startswith(" 14") for r in rows)
    assert any(r.startswith(" 2") for r in rows)
    assert batch.steps == 3
    assert batch.choices.shape == (1, 5, 3)
    assert batch.right.tolist() == [[True, True, True, False, False]]
    for choice, row in zip(batch.choices[0], batch.row_of[0], strict=True):
        length = int((choice >= 0).sum())
        assert batch.clean[row, 3 : 3 + length - 1].tolist() == choice[: length - 1].tolist()


def test_bos_is_prepended_as_the_model_wants_it(checkpoint):
    folder = str(checkpoint("gpt2"))
    with_bos, without = load(folder, prepend_bos=True), load(folder, prepend_bos=False)
    assert made(with_bos, NAMES)[0].clean[0, 0] == checkpoints.tokenizer().bos_token_id
    assert made(without, NAMES)[0].clean.shape == (1, 4)


def test_token_texts_are_the_prompt(tiny):
    encoder = encoder_of(tiny)
    assert "".join(encoder.texts(encoder.ids(NAMES.clean))) == f"<bos>{NAMES.clean}"


@pytest.mark.shared
def test_a_sentencepiece_answer_continues_the_prompt_without_a_space_token(tinystories):
    pair = Pair(
        "When Mary and John went, John gave it to",
        "When Anna and John went, John gave it to",
        (" Mary",),
        (" John",),
    )
    (batch,) = made(tinystories, pair)
    assert batch.steps == 1
    whole = tinystories.tokenizer.encode(pair.clean + " Mary")
    assert batch.choices[0, 0].tolist() == whole[-1:]
    assert tinystories.to_tokens(pair.clean).tolist() == batch.clean.tolist()


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        (
            Pair("The Mary", "The Mary and", (" to",), (" and",)),
            "clean has 3 tokens, corrupt has 4",
        ),
        (Pair("The Mary", "The Mary", (" to",), (" and",)), "clean and corrupt are the same"),
        (Pair("The", "and", ("odor",), (" and",)), "'odor' has no tokens of its own"),
        (Pair("The" + " to" * 70, "and" + " to" * 70, (" to",), (" and",)), "has 72 tokens, .*64"),
    ],
)
def test_a_pair_that_cannot_be_scored_is_named(pair, message, tiny):
    with pytest.raises(MechheadsError, match=rf"Prompt 2 of task own.*{message}"):
        made(tiny, NAMES, pair)


@pytest.mark.parametrize("task", ["math", "greater_than", "ioi"])
def test_every_answer_is_scored_by_a_row_that_holds_its_beginning(task, tiny):
    prompts = tasks.make(task, tiny, n=10)
    for batch in batches(encoder_of(tiny), prompts):
        end = batch.clean.shape[1] - batch.steps + 1
        for b, index in enumerate(batch.pairs.tolist()):
            pair = prompts.pairs[index]
            texts = [*pair.answers, *pair.wrong]
            for c, text in enumerate(texts):
                tokens = batch.choices[b, c][batch.choices[b, c] >= 0]
                assert tiny.tokenizer.decode(tokens) == text
                row = batch.row_of[b, c]
                assert batch.pair_of[row] == b
                assert torch.equal(batch.clean[row, end : end + len(tokens) - 1], tokens[:-1])


def uneven(tmp_path):
    """A task file whose lines 2 and 5 are misaligned."""
    answers = {"answer": " Mary", "wrong": " John"}
    lines = [{"clean": f"{i} Mary", "corrupt": f"{i} John", **answers} for i in range(12)]
    for i in (1, 4):
        lines[i]["corrupt"] = f"{i} John John John"
    file = tmp_path / "own.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    return file


def test_all_misaligned_lines_are_listed_at_once(tiny, tmp_path):
    with pytest.raises(MechheadsError) as caught:
        list(batches(encoder_of(tiny), tasks.make(str(uneven(tmp_path)), tiny, n=12, seed=3)))
    said = str(caught.value)
    assert said.startswith("2 of 12 prompts of own cannot be used.")
    assert "own.jsonl, line 2 " in said
    assert "own.jsonl, line 5 " in said
    assert "or leave them out: --skip-misaligned on the command line" in said


def test_misaligned_lines_of_both_halves_are_listed_before_any_work(tiny, tmp_path):
    """`discover` ranks the heads on one half of the prompts and judges them on the other."""
    file = uneven(tmp_path)
    with pytest.raises(MechheadsError, match=r"(?s)^2 of 12 .*line 2 .*line 5 "):
        tasks.make(file, tiny)
    records = [json.loads(line) for line in file.read_text().splitlines()]
    with pytest.raises(MechheadsError, match=r"(?s)^2 of 12 .*Record 2 .*Record 5 "):
        discover(tiny, tasks.from_records(records), quiet=True)
    usable = tasks.from_records(records, usable_by=tiny)
    assert (len(usable), usable.skipped) == (10, 2)


def test_misaligned_lines_are_left_out_and_counted(tiny, tmp_path):
    made = tasks.make(str(uneven(tmp_path)), tiny, skip_misaligned=True)
    assert (len(made), made.skipped) == (10, 2)
    assert len(list(batches(encoder_of(tiny), made))) > 0
    few = tasks.make(str(uneven(tmp_path)), tiny, n=10, skip_misaligned=True)
    assert len(few) == 10  # as many as asked for, all usable
    file = tmp_path / "bad.jsonl"
    file.write_text(
        json.dumps({"clean": "a", "corrupt": "a Mary", "answer": " Mary", "wrong": " a"})
    )
    with pytest.raises(MechheadsError, match=r"None of the 1 prompts of bad can be used"):
        tasks.make(str(file), tiny, skip_misaligned=True)


def test_the_count_of_what_was_left_out_is_a_warning(tiny, tmp_path):
    made = tasks.make(str(uneven(tmp_path)), tiny, skip_misaligned=True)
    assert "2 prompts of own were left out" in evaluate(tiny, made, quiet=True).warnings[-1]
