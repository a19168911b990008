import json

import pandas as pd
import pytest

import tasks
from mechheads import MechheadsError
from mechheads.prompts import Pair, words_as_tokens
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
        (json.dumps({**RECORD, "clan": "x"}), "line 2: Unknown field 'clan'. Did you mean 'clean'"),
        (json.dumps({**RECORD, "clean": ""}), "line 2: 'clean' must be non-empty text"),
        (json.dumps({**RECORD, "wrong": []}), r"line 2: 'wrong' must be text or a list of texts"),
        (json.dumps({**RECORD, "answer": 3}), r"line 2: 'answer' must be text or a list of texts"),
        (json.dumps({**RECORD, "wrong": [" a"]}), "line 2: ' a' is both an answer and a wrong"),
        ("[" * 100_000, "line 2: nested too deeply"),
        ('{"clean": "\\ud800", "corrupt": "b", "answer": "c", "wrong": "d"}', "unpaired surrogate"),
        (json.dumps({"clean": "x", "corrupt": "y", "answer": " a"}), "line 2: the field 'wrong'"),
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
    with pytest.raises(MechheadsError, match="Cannot read"):
        from_file(tmp_path)
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(MechheadsError, match="Cannot read"):
        from_file(tmp_path / "binary.jsonl")


def test_records_are_named_by_number():
    with pytest.raises(MechheadsError, match="Record 2 of own: the field 'clean' is missing"):
        tasks.from_records([RECORD, {"corrupt": "x"}])
    with pytest.raises(MechheadsError, match="has no records"):
        tasks.from_records([])
