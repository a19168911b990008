"""The tasks with targets: what they ask has one answer, and it is the right one."""

import re

import pytest

import tasks
from mechheads.prompts import held_out, words_as_tokens
from tasks import facts

PLAIN = words_as_tokens()
TARGETS = list(tasks.TASKS)[5:]


def last_question(text):
    return text.rpartition("Question: ")[2].partition("\nAnswer:")[0]


def made(task, n=150, **options):
    for pair in tasks.make(task, PLAIN, n=n, split="all", **options).pairs:
        yield last_question(pair.clean), pair.answers[0].strip()
        yield last_question(pair.corrupt), pair.wrong[0].strip()


@pytest.mark.parametrize("task", TARGETS)
def test_layout_is_examples_then_the_question_and_only_the_question_changes(task):
    for shots in (0, 1, 2):
        for pair in tasks.make(task, PLAIN, n=20, shots=shots).pairs:
            assert pair.clean.count("Question: ") == pair.clean.count("Answer:") == shots + 1
            assert re.search(r"\nAnswer:( [A-Z][ \w]*)?$", pair.clean)
            assert pair.clean.split()[-1] == pair.corrupt.split()[-1]
            assert pair.clean.rpartition("Question:")[0] == pair.corrupt.rpartition("Question:")[0]
            assert len(pair.answers) == len(pair.wrong) == 1
            assert pair.answers != pair.wrong


@pytest.mark.parametrize("task", ["common_sense", "retrieval", "math_calculation", "inference"])
def test_no_held_out_question_stands_solved_in_a_training_prompt(task):
    tested = {last_question(p.clean) for p in tasks.make(task, PLAIN, n=100, split="test").pairs}
    for pair in tasks.make(task, PLAIN, n=300, split="train").pairs:
        assert not held_out(pair.group)
        asked = re.findall(r"Question: (.*)\nAnswer", pair.clean)
        assert not tested & set(asked)


@pytest.mark.parametrize("task", TARGETS)
def test_no_solved_example_is_a_question_or_tells_its_answer(task):
    for pair in tasks.make(task, PLAIN, n=2000, split="all", or_all=True).pairs:
        examples = pair.clean.rpartition("Question: ")[0]
        solved = re.findall(r"Question: (.*)\nAnswer:", examples)
        assert last_question(pair.clean) not in solved
        assert last_question(pair.corrupt) not in solved
        if task != "common_sense" and "Complete the sentence with is or are" not in examples:
            shown = re.findall(r"\w+", examples.partition("Question: ")[2])
            for answer in (*pair.answers, *pair.wrong):
                assert answer.strip() not in shown


def test_math_examples_are_other_sums_with_other_results():
    for pair in tasks.make("math", PLAIN, n=500, shots=3, high=12, or_all=True).pairs:
        *solved, _ = re.findall(r"= (\d*)", pair.clean)
        assert not {*solved} & {a.strip() for a in (*pair.answers, *pair.wrong)}


# Words that name two things: questions in which both readings are offered have two right options.
TWO_READINGS = {
    "Which of these is a color": {"orange", "peach", "cherry", "gold", "silver", "copper"},
    "Where would you find a deer": {"zoo", "farm"},
    "Where would you find a camel": {"zoo", "farm"},
    "Where would you find a plane": {"sky", "museum"},
    "What do you use to tell the time": {"phone"},
    "What do you use to take a picture": {"phone"},
}


def test_common_sense_offers_no_second_option_that_is_right():
    asked = set()
    for question, letter in made("common_sense", n=2000):
        options = dict(re.findall(r"([A-E]): (\S+)", question))
        stem = question.partition("?")[0]
        wrong = {option for key, option in options.items() if key != letter}
        assert not wrong & TWO_READINGS.get(stem, set()), question
        asked.add(stem)
    assert asked >= {*TWO_READINGS}


def test_syntax_forms_are_those_of_the_tables():
    for kind, table in (("past", facts.PAST), ("plural", facts.PLURAL)):
        for question, answer in made("syntax", kind=kind):
            assert table[question] == answer


def test_syntax_turns_sentences_into_questions_and_negations():
    for question, answer in made("syntax", kind="question"):
        the, subject, modal, deed = question.removesuffix(".").split()
        assert answer == f"{modal.capitalize()} {the.lower()} {subject} {deed}?"
    for question, answer in made("syntax", kind="negation"):
        *start, deed = question.split()
        assert answer == " ".join([*start, "not", deed])


def test_syntax_agreement_follows_the_subject_not_the_distractor():
    plurals = set(facts.PLURAL.values())
    misleading = 0
    for question, answer in made("syntax", kind="agreement"):
        subject, distractor = question.split()[1], question.split()[-1]
        assert answer == ("are" if subject in plurals else "is")
        misleading += (subject in plurals) != (distractor in plurals)
    assert misleading > 80


def test_common_sense_has_one_right_option():
    for question, letter in made("common_sense"):
        options = dict(re.findall(r"([A-E]): (\S+)", question))
        asked = question.partition("?")[0]
        for known, wording in (
            (facts.USES, "What do you use to "),
            (facts.PLACES, "Where would you find "),
        ):
            if asked.startswith(wording):
                assert options[letter] == known[asked.removeprefix(wording)]
        if asked.startswith("Which of these is "):
            members = facts.CATEGORIES[asked.removeprefix("Which of these is ")]
            assert [k for k, option in options.items() if option in members] == [letter]


def test_words_of_one_category_are_in_no_other():
    words = [w for members in facts.CATEGORIES.values() for w in members]
    assert len(words) == len(set(words))


def test_retrieval_answers_stand_behind_what_is_asked_about():
    for question, answer in made("retrieval"):
        context, asked = re.split(r"(?<=\.) ", question)
        key = asked.rstrip("?").split()[-1]
        (fact,) = re.findall(rf"\b{key} (\w+)", context, flags=re.I)
        assert fact == answer


def test_a_stem_begins_what_the_answer_ends():
    for pair in tasks.make("retrieval", PLAIN, n=50, split="all").pairs:
        stem = pair.clean.rpartition("\nAnswer: ")[2].removeprefix("The ")
        assert f"{stem}{pair.answers[0]}" in last_question(pair.clean)
    for pair in tasks.make("inference", PLAIN, n=50, split="all").pairs:
        stem = pair.clean.rpartition("\nAnswer: ")[2].removesuffix(" is").removeprefix("The ")
        assert last_question(pair.clean).endswith(f"{stem}?")


def test_knowledge_recall_knows_its_facts():
    for relation, (table, _) in facts.RELATIONS.items():
        for question, answer in made("knowledge_recall", n=40, relation=relation):
            subject = max((s for s in table if re.search(rf"\b{s}\b", question)), key=len)
            assert table[subject] == answer


def test_math_calculation_is_right():
    for question, answer in made("math_calculation"):
        a, b = map(int, re.findall(r"\d+", question))
        result = (
            a * b if "each" in question else a - b if re.search("gives|takes", question) else a + b
        )
        assert int(answer) == result


def test_inference_comparisons_and_deductions_are_right():
    upward = {more: (most, least) for more, _, most, least in facts.COMPARISONS}
    downward = {less: (most, least) for _, less, most, least in facts.COMPARISONS}
    for question, answer in made("inference", kind="comparison"):
        order = set()
        for x, how, y in re.findall(r"(\w+) is (\w+) than (\w+)\.", question):
            order.add((x, y) if how in upward else (y, x))
            most, least = {**upward, **downward}[how]
        (top,) = {x for x, _ in order} - {y for _, y in order}
        (bottom,) = {y for _, y in order} - {x for x, _ in order}
        assert answer == {most: top, least: bottom}[question.split()[-1].strip("?")]
    for question, answer in made("inference", kind="deduction"):
        rules = dict(re.findall(r"Every (\w+) is (\w+)\.", question))
        (kind,) = re.findall(r"is a (\w+)\.", question)
        assert rules[kind] == answer
