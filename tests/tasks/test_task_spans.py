"""Every task marks the parts of its prompts that its paper, or the field, has names for."""

import json
import re

import pytest
import transformers

import mechheads
import tasks
from mechheads import MechheadsError
from mechheads.models.model import encoder_of
from mechheads.prompts import words_as_tokens
from mechheads.prompts.encoder import Encoder
from mechheads.prompts.positions import common_spans, span_positions
from tasks import facts, ioi
from tasks.files import from_file

PLAIN = words_as_tokens()


def texts(pair):
    """The text of every span; a name that is marked several times has several."""
    found = {}
    for span in pair.spans:
        found.setdefault(span.name, []).append(pair.clean[span.begin : span.end])
    return {name: words[0] if len(words) == 1 else words for name, words in found.items()}


@pytest.fixture(scope="module", params=["mini", "gpt2", "pythia-neox-20B", "tinyllamas-stories15M"])
def encoder(request, shared):
    if request.param == "mini":
        return encoder_of(mechheads.load("mini"))
    if "llama" in request.param:
        return encoder_of(mechheads.load(str(shared / "models" / request.param)))
    path = shared / "tokenizers" / request.param / "tokenizer.json"
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(path))
    return Encoder(request.param, tokenizer, False, 2048, 2**20)


@pytest.mark.shared
@pytest.mark.parametrize("task", ["ioi", "ioi_long"])
def test_tokens_of_ioi_are_the_names_in_every_template(task, encoder):
    made = tasks.make(task, encoder.tokenizer, n=300, split="all")
    names = common_spans(made)
    assert names == ["IO", "S1", "S1+1", "S2", "END"]
    seen = set()
    for pair, found in zip(made, span_positions(encoder, made, names), strict=True):
        io, s1, after, s2, end = (positions for (*positions,) in found)
        tokens = [encoder.decode([i]).strip() for i in encoder.ids(pair.clean)]
        receiver, giver = pair.answers[0].strip(), pair.wrong[0].strip()
        assert [i for i, token in enumerate(tokens) if token == receiver] == io
        assert [i for i, token in enumerate(tokens) if token == giver] == [*s1, *s2]
        assert after == [s1[0] + 1]
        assert end == [len(tokens) - 1]
        seen.add((pair.clean.partition(receiver)[0].partition(giver)[0], io < s1))
    starts = {template.partition("{X}")[0] for template in ioi.TEMPLATES}
    assert {first for _, first in seen} == {True, False}
    if task == "ioi":
        fixed = {start for start in starts if "{" not in start}
        assert fixed <= {start for start, _ in seen}


@pytest.mark.shared
@pytest.mark.parametrize("task", tasks.TASKS)
def test_every_span_of_every_task_has_tokens_that_spell_it(task, encoder):
    made = tasks.make(task, encoder.tokenizer, n=40, split="all")
    for i, pair in enumerate(made):
        one = made[i : i + 1]
        names = common_spans(one)
        assert len(names) > 1
        ids = encoder.ids(pair.clean)
        (found,) = span_positions(encoder, one, names)
        where = dict(zip(names, found, strict=True))
        for name, text in texts(pair).items():
            words = " ".join(text) if isinstance(text, list) else text
            spelled = encoder.decode([ids[position] for position in where[name]])
            assert words.replace(" ", "") in spelled.replace(" ", "")
        assert found[-1] == (len(ids) - 1,)


def test_greater_than_marks_the_noun_and_the_parts_of_the_years(tiny):
    for pair in tasks.make("greater_than", tiny, n=20):
        noun, first, two, last = re.findall(
            r"^The (.+) lasted from the year (\d\d)(\d\d) to the year (\d\d)$", pair.clean
        )[0]
        assert texts(pair) == {"NOUN": noun, "XX1": first, "YY": two, "XX2": last}
    assert common_spans(tasks.make("greater_than", PLAIN, n=4)) == ["NOUN", "XX1", "YY", "END"]


@pytest.mark.parametrize("matching", [2, 3, 5, 25])
def test_docstring_marks_the_matching_arguments_in_order(matching):
    made = tasks.make("docstring", PLAIN, n=10, matching=matching)
    for pair in made:
        arguments = re.findall(r"\w+", pair.clean.partition("self, ")[2].partition(")")[0])
        documented = re.findall(r":param (\w+):", pair.clean)
        assert list(texts(pair).values()) == [*arguments[2 : 2 + matching], *documented]
    names = common_spans(made)
    assert names[:2] == ["A_def", "B_def"]
    assert len(set(names)) == 2 * matching
    if matching == 3:
        assert names == ["A_def", "B_def", "C_def", "A_doc", "B_doc", "END"]


@pytest.mark.parametrize("shots", [0, 2])
def test_math_marks_the_last_question(shots):
    for pair in tasks.make("math", PLAIN, n=40, shots=shots, split="all"):
        a, sign, b = re.findall(r"(\d+) (.) (\d+) =$", pair.clean)[0]
        assert texts(pair) == {"OP1": a, "OPERATOR": sign, "OP2": b}
        assert min(span.begin for span in pair.spans) > pair.clean.rindex("Calculate")
    for pair in tasks.make("math_calculation", PLAIN, n=40, shots=shots, split="all"):
        found = texts(pair)
        question = pair.clean.rpartition("Question: ")[2]
        assert [found["OP1"], found["OP2"]] == re.findall(r"\d+", question)
        assert [*dict.fromkeys(found["THINGS"])] == re.findall(r"How many (\w+)", question)


@pytest.mark.parametrize("shots", [0, 1])
def test_questions_mark_what_is_asked_and_where_the_answer_is(shots):
    for task in ("retrieval", "inference", "common_sense"):
        for pair in tasks.make(task, PLAIN, n=60, shots=shots, split="all"):
            found = texts(pair)
            asked, question = pair.clean.rpartition("Question: ")[::2]
            assert all(span.begin >= len(asked) for span in pair.spans)
            right, wrong = pair.answers[0].strip(), pair.wrong[0].strip()
            if task == "common_sense":
                assert (found["ANSWER_LETTER"], found["OTHER_LETTER"]) == (right, wrong)
                for side, letter in (("ANSWER", right), ("OTHER", wrong)):
                    assert f"{letter}: {found[side]}" in question
                assert f"{found['SUBJECT']}?" in question
                continue
            assert (found["ANSWER"], found["OTHER"]) == (right, wrong)
            assert f"{found['ASKED']}?" in question
            if task == "retrieval":
                assert f"{found['KEY']} {right}" in question
                assert f"{found['OTHER_KEY']} {wrong}" in question
                assert found["KEY"].lower() == found["ASKED"].lower()
            if "RULE" in found:
                assert found["RULE"] == found["KIND"]
                assert f"Every {found['OTHER_RULE']} is {wrong}." in question


def test_subjects_of_facts_and_parts_of_sentences_are_marked():
    for relation, (table, _) in facts.RELATIONS.items():
        for pair in tasks.make("knowledge_recall", PLAIN, n=20, relation=relation):
            assert table[texts(pair)["SUBJECT"]] == pair.answers[0].strip()
    for kind in ("past", "plural"):
        for pair in tasks.make("syntax", PLAIN, n=20, kind=kind):
            assert texts(pair) == {"WORD": pair.clean.split()[-2]}
    for pair in tasks.make("syntax", PLAIN, n=20, kind="negation"):
        found = texts(pair)
        said = f"The {found['SUBJECT']} {found['MODAL']} not {found['VERB']}."
        assert pair.answers == (f" {said}",)
    for pair in tasks.make("syntax", PLAIN, n=20, kind="agreement"):
        found = texts(pair)
        assert f"The {found['SUBJECT']} {found['LINK']} {found['DISTRACTOR']}\n" in pair.clean
    assert common_spans(tasks.make("syntax", PLAIN, n=40)) == ["END"]


RECORD = {"clean": "Mary saw John. John", "corrupt": "Anna saw John. John", "answer": " a"}
RECORD |= {"wrong": " b"}


def test_lines_and_records_mark_spans_by_text_or_by_characters(tmp_path):
    record = RECORD | {"spans": {"S2": [15, 19], "IO": "Mary"}}
    file = tmp_path / "own.jsonl"
    file.write_text(json.dumps(record))
    for made in (from_file(file), tasks.from_records([record])):
        assert [(s.name, s.begin, s.end) for s in made[0].spans] == [("IO", 0, 4), ("S2", 15, 19)]
    assert tasks.from_records([RECORD | {"spans": None}, RECORD])[0].spans == ()


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ({"S1": "John"}, r"the span 'S1' is 'John', which occurs several times in 'clean'.*\[5, 9"),
        ({"S1": "Tom"}, "the span 'S1' is 'Tom', which does not occur in 'clean'"),
        ({"S1": ""}, "the span 'S1' is ''"),
        ({"S1": [5, 90]}, r"the span 'S1' is \[5, 90\], expected its text or its characters.*19"),
        ({"S1": [5]}, r"the span 'S1' is \[5\]"),
        ({"S1": [1.0, 2.0]}, r"the span 'S1' is \[1.0, 2.0\]"),
        ({"S1": [9, 5]}, r"the span 'S1' cannot be used.*less than its end"),
        ({"S1": None}, "the span 'S1' is None"),
        ({"END": [0, 3]}, "the span 'END' cannot be used. END is the last token"),
        (["Mary"], r"'spans' must be a table such as .*, got \['Mary'\]"),
    ],
)
def test_a_wrong_span_is_named_with_its_line(spans, message, tmp_path):
    file = tmp_path / "own.jsonl"
    file.write_text(json.dumps(RECORD) + "\n" + json.dumps(RECORD | {"spans": spans}))
    with pytest.raises(MechheadsError, match=rf"own.jsonl, line 2: .*{message}") as caught:
        from_file(file)
    assert "\n" not in str(caught.value)
