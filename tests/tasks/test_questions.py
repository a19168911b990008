"""Questions from a file."""

import json

import pytest

from mechheads.errors import MechheadsError
from mechheads.prompts import Question
from tasks.questions import from_file


def test_questions_from_files(tmp_path):
    file = tmp_path / "q.jsonl"
    rows = [
        {"question": "Who?", "answer": "Ann", "context": "Ann came.", "function": "Retrieval"},
        {"question": "2+2?", "answer": ["4", "four"]},
    ]
    file.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    first, second = from_file(file)
    assert first == Question("Ann came.\n\nQuestion: Who?\nAnswer:", ("Ann",), "Retrieval", "Who?")
    assert second == Question("Question: 2+2?\nAnswer:", ("4", "four"), "q", "2+2?")
    for wrong, words in (
        ("", "empty"),
        ("[1]", "is not in CogQA's format"),
        ("{", "is not JSON"),
        ('{"question": "x"}', "line 1 has no answer"),
        ('{"answer": "x"}', "line 1 has no question"),
        ("3", "line 1 is not an object"),
    ):
        file.write_text(wrong, encoding="utf-8")
        with pytest.raises(MechheadsError, match=words):
            from_file(file)
    with pytest.raises(MechheadsError, match="No question file"):
        from_file(tmp_path / "missing.jsonl")
