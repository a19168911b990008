import json
import os

import pandas as pd
import pytest

import tasks
from mechheads import MechheadsError
from mechheads.prompts import Pair, words_as_tokens
from tasks import questions
from tasks.files import from_file

RECORD = {"clean": "A is", "corrupt": "B is", "answer": " a", "wrong": [" b", " c"]}
PAIR = Pair("A is", "B is", (" a",), (" b", " c"))


def write(path, *lines):
    path.write_text("\n".join(lines))
    return str(path)


def test_file_records_and_frame_give_the_same_pairs(tmp_path):
    file = write(tmp_path / "mine.jsonl", json.dumps(RECORD), "", json.dumps(RECORD))
    assert from_file(file).pairs == (PAIR, PAIR)
    assert tasks.from_records([RECORD, RECORD]).pairs == (PAIR, PAIR)
    assert tasks.from_records(pd.DataFrame([RECORD, RECORD])).pairs == (PAIR, PAIR)


def test_make_reads_a_file_and_takes_n_of_it_by_seed(tmp_path):
    records = [RECORD | {"clean": f"A{i} is"} for i in range(20)]
    file = write(tmp_path / "mine.jsonl", *map(json.dumps, records))
    everything = tasks.make(file, words_as_tokens())
    assert everything.task == "mine"
    assert len(everything) == 20
    few, more = (tasks.make(file, words_as_tokens(), n=n, seed=1).pairs for n in (5, 9))
    assert len(few) == 5
    assert more[:5] == few
    assert few != everything.pairs[:5]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"line 2: not JSON \(.* at column 2\)"),
        ("[1]", r"line 2: expected an object, got \[1\]"),
        (
            json.dumps({"clan": "x", "corrupt": "y", "answer": " a", "wrong": " b"}),
            "line 2: the field 'clean' is missing. Did you mean 'clan'",
        ),
        (json.dumps({**RECORD, "clean": ""}), "line 2: 'clean' must be non-empty text"),
        (json.dumps({**RECORD, "wrong": []}), r"line 2: 'wrong' must be text or a list of texts"),
        (json.dumps({**RECORD, "answer": 3}), r"line 2: 'answer' must be text or a list of texts"),
        (json.dumps({**RECORD, "wrong": [" a"]}), "line 2: ' a' is both an answer and a wrong"),
        ("[" * 100_000, "line 2: nested too deeply"),
        ('{"clean": "\\ud800", "corrupt": "b", "answer": "c", "wrong": "d"}', "unpaired surrogate"),
        (json.dumps({"clean": "x", "corrupt": "y", "wrong": " a"}), "line 2: the field 'answer'"),
        (json.dumps({**RECORD, "group": "\ud800"}), "line 2: 'group' has an unpaired surrogate"),
        (json.dumps({**RECORD, "spans": {"\ud800": [0, 1]}}), "'spans' has an unpaired surrogate"),
        (json.dumps({**RECORD, "spans": {"A": [0, 10**400]}}), r"line 2: .* is \[0, 1000+\.\.\., "),
    ],
)
def test_a_bad_line_is_named_by_number_and_reason(line, message, tmp_path):
    file = write(tmp_path / "mine.jsonl", json.dumps(RECORD), line)
    with pytest.raises(MechheadsError, match=message) as caught:
        from_file(file)
    assert "\n" not in str(caught.value)


def test_a_byte_order_mark_and_a_line_separator_inside_of_text_are_taken(tmp_path):
    record = RECORD | {"clean": "A\u2028is"}
    text = json.dumps(record, ensure_ascii=False)
    (tmp_path / "mine.jsonl").write_text(f"{text}\r\n{text}", encoding="utf-8-sig", newline="")
    assert [p.clean for p in from_file(tmp_path / "mine.jsonl").pairs] == ["A\u2028is"] * 2


def test_an_empty_file_a_folder_and_binary_are_refused(tmp_path):
    with pytest.raises(MechheadsError, match="is empty"):
        from_file(write(tmp_path / "empty.jsonl", ""))
    with pytest.raises(MechheadsError, match="is not a regular file, so it cannot be read as"):
        from_file(tmp_path)
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(MechheadsError, match="Cannot read"):
        from_file(tmp_path / "binary.jsonl")


def test_records_are_named_by_number():
    with pytest.raises(MechheadsError, match="Record 2 of own: the field 'clean' is missing"):
        tasks.from_records([RECORD, {"corrupt": "x"}])
    with pytest.raises(MechheadsError, match="has no records"):
        tasks.from_records([])


def test_more_answers_than_can_be_scored_are_refused(tmp_path):
    wrong = [f" {i}" for i in range(3000)]
    file = write(tmp_path / "many.jsonl", json.dumps({**RECORD, "wrong": wrong}))
    with pytest.raises(MechheadsError, match=r"line 1: 3,001 answers, right and wrong; at most"):
        tasks.make(file, words_as_tokens())


def test_the_sample_depends_on_the_content_and_not_on_the_name_of_the_file(tmp_path):
    lines = [json.dumps({**RECORD, "clean": f"{i} x"}) for i in range(40)]
    taken = [
        tasks.make(write(tmp_path / name, *text), words_as_tokens(), n=9).pairs
        for name, text in (("aa.jsonl", lines), ("bb.jsonl", lines), ("cc.jsonl", lines[1:]))
    ]
    assert taken[0] == taken[1]
    assert {pair.clean for pair in taken[0]} != {pair.clean for pair in taken[2]}


def test_a_prompt_is_named_by_its_line_whatever_the_order(tmp_path):
    lines = [json.dumps({**RECORD, "clean": f"{i} x"}) for i in range(1, 40)]
    for pair in tasks.make(write(tmp_path / "own.jsonl", *lines), words_as_tokens(), n=9).pairs:
        assert pair.source.endswith(f"own.jsonl, line {pair.clean.split()[0]}")


def test_equal_lines_are_parsed_once_per_file(tmp_path, monkeypatch):
    file = write(tmp_path / "same.jsonl", *[json.dumps(RECORD)] * 1000)
    tasks.make(file, words_as_tokens(), n=3)
    monkeypatch.setattr("tasks.files._object", None)
    assert len(tasks.make(file, words_as_tokens(), n=3)) == 1


def test_other_fields_are_ignored_and_groups_stay_together(tmp_path):
    lines = [
        json.dumps({**RECORD, "clean": f"{i} x", "id": i, "note": "?", "group": i // 4})
        for i in range(32)
    ]
    prompts = from_file(write(tmp_path / "own.jsonl", *lines))
    assert prompts[5].group == "1"
    one, two = prompts.halves()
    assert {p.group for p in one}.isdisjoint({p.group for p in two})
    assert len(one) + len(two) == 32
    frame = pd.DataFrame([{**RECORD, "group": None}, {**RECORD, "group": float("nan")}])
    assert {pair.group for pair in tasks.from_records(frame)} == {""}
    with pytest.raises(MechheadsError, match=r"Record 1 of own: 'group' must be text"):
        tasks.from_records([{**RECORD, "group": ["a"]}])


@pytest.mark.parametrize("read", [from_file, questions.from_file])
def test_a_device_or_a_pipe_without_end_is_not_read(read, tmp_path):
    os.mkfifo(tmp_path / "pipe.jsonl")
    for path in ("/dev/zero", tmp_path / "pipe.jsonl"):
        with pytest.raises(MechheadsError, match="is not a regular file"):
            read(path)


QUESTION = {"question": "2 + 2?", "answer": "4"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"question": "\ud800"}, "'question' has an unpaired surrogate"),
        ({"question": 5}, None),
        ({"question": [1]}, r"the question is \[1\], expected text or a number"),
        ({"answer": "\ud800"}, "'answer' has an unpaired surrogate"),
        ({"answer": ["4", "\ud800"]}, "'answer' has an unpaired surrogate"),
        ({"answer": ["4", {"a": 1}]}, "the answer is {'a': 1}, expected text or a number"),
        ({"answer": True}, "the answer is True, expected text or a number"),
        ({"answer": float("nan")}, "the answer is nan, expected text or a number"),
        ({"answer": []}, "has no answer"),
        ({"answer": None}, "has no answer"),
        ({"answer": [str(i) for i in range(501)]}, "has 501 answers; at most 500 are possible"),
        ({"function": "\ud800"}, "'function' has an unpaired surrogate"),
        ({"context": {"a": 1}}, "the context is {'a': 1}, expected text or a number"),
        ({"context": "\ud800"}, "'context' has an unpaired surrogate"),
    ],
    ids=str,
)
def test_questions_are_text_or_numbers(changes, message, tmp_path):
    file = write(tmp_path / "own.jsonl", json.dumps({**QUESTION, **changes}))
    if message is None:
        assert questions.from_file(file)[0].prompt == "Question: 5\nAnswer:"
        return
    with pytest.raises(MechheadsError, match=f"own.jsonl, line 1.*{message}"):
        questions.from_file(file)


def test_numbers_of_thousands_of_digits_are_one_error(tmp_path):
    for read, name in ((from_file, "clean"), (questions.from_file, "question")):
        file = write(tmp_path / "own.jsonl", f'{{"{name}": {"9" * 5000}}}')
        with pytest.raises(MechheadsError, match="line 1"):
            read(file)
