import os
import re
import subprocess
import sys

import pytest
import transformers

import tasks
from mechheads.errors import MechheadsError, MechheadsWarning
from mechheads.options import choices
from mechheads.prompts import Lexicon, words_as_tokens
from mechheads.prompts.lexicon import tokenizer_lexicon
from tasks import docstring, ioi, words

PLAIN = words_as_tokens()
IOI = choices(ioi.Corruption)
DOCSTRING = choices(docstring.Corruption)


@pytest.fixture(scope="module", params=["gpt2", "pythia-neox-20B"])
def published(request, shared):
    """The real tokenizers with which the tasks were published."""
    path = shared / "tokenizers" / request.param / "tokenizer.json"
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(path))
    return tokenizer_lexicon(tokenizer, request.param)


VARIANTS = [
    *(("ioi", {"corruption": c}) for c in IOI),
    ("ioi", {"templates": "wang"}),
    *(("ioi_long", {"corruption": c}) for c in IOI),
    ("ioi_long", {"length": 400}),
    *(("docstring", {"corruption": c}) for c in DOCSTRING),
    ("docstring", {"prefix": 0, "matching": 4, "suffix": 3}),
    ("greater_than", {}),
    *(("math", {"corruption": c}) for c in ("second", "first", "both")),
    ("math", {"operations": "add,subtract,multiply", "high": 120, "shots": 2}),
    ("syntax", {}),
    ("common_sense", {}),
    ("retrieval", {}),
    ("knowledge_recall", {}),
    ("math_calculation", {}),
    ("inference", {}),
]
IDS = [f"{task}-{'-'.join(map(str, options.values()))}" for task, options in VARIANTS]


@pytest.mark.shared
@pytest.mark.parametrize(("task", "options"), VARIANTS, ids=IDS)
def test_pairs_align_token_by_token_with_published_tokenizers(task, options, published):
    prompts = tasks.make(task, published, n=60, **options)
    assert len({p.clean for p in prompts.pairs}) == 60
    for pair in prompts.pairs:
        clean, corrupt = published.split(f" {pair.clean}"), published.split(f" {pair.corrupt}")
        assert len(clean) == len(corrupt)
        assert clean != corrupt
        assert not set(pair.answers) & set(pair.wrong)


@pytest.mark.parametrize("task", tasks.TASKS)
def test_prompts_depend_on_the_seed_alone_and_grow_by_appending(task):
    first = tasks.make(task, PLAIN, n=20, seed=3)
    assert tasks.make(task, PLAIN, n=50, seed=3).pairs[:20] == first.pairs
    assert tasks.make(task, PLAIN, n=20, seed=4).pairs != first.pairs


def test_prompts_are_the_same_in_another_process_with_another_hash_seed():
    program = (
        "import tasks; from mechheads.prompts import words_as_tokens as w\n"
        "print(*[tasks.make(t, w(), n=20).digest() for t in tasks.TASKS])"
    )
    here = [tasks.make(task, PLAIN, n=20).digest() for task in tasks.TASKS]
    for seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": seed}
        out = subprocess.run(
            [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True
        )
        assert out.stdout.split() == here


@pytest.mark.parametrize("task", tasks.TASKS)
def test_no_group_is_in_both_splits(task):
    made = {s: tasks.make(task, PLAIN, n=60, split=s).pairs for s in ("train", "test")}
    groups = {split: {pair.group for pair in pairs} for split, pairs in made.items()}
    assert all(groups.values())
    assert "" not in groups["train"] | groups["test"]
    assert not groups["train"] & groups["test"]


def names_in(text):
    return [w for w in re.findall(r"[A-Z][a-z]+", text) if w in set(words.NAMES)]


def test_ioi_has_the_papers_fifteen_templates_and_a_hundred_names():
    assert len(ioi.WANG) == 15
    assert len({*ioi.TEMPLATES} & {*ioi.WANG}) == 10
    pairs = tasks.make("ioi", PLAIN, n=400, templates="wang").pairs
    assert {p.clean.split()[0] for p in pairs} >= {"Then,", "After", "When", "While", "Friends"}
    assert any(p.clean.endswith("said to") for p in pairs)
    assert {w for p in pairs for w in (*words.PLACES, *words.OBJECTS) if w in p.clean.split()} <= {
        *ioi.WANG_PLACES,
        *ioi.WANG_OBJECTS,
    }
    assert len(set(words.NAMES)) == len(words.NAMES) >= 100


@pytest.mark.shared
def test_ioi_keeps_a_hundred_names_with_the_gpt2_tokenizer(published):
    assert len(published.single(words.NAMES, "names", at_least=1)) >= 100


@pytest.mark.parametrize("task", ["ioi", "ioi_long"])
def test_ioi_asks_for_the_receiver_and_uses_both_orders(task):
    receiver_first = 0
    for pair in tasks.make(task, PLAIN, n=200).pairs:
        receiver, giver = pair.answers[0].strip(), pair.wrong[0].strip()
        people = [n for n in names_in(pair.clean) if n in (receiver, giver)]
        assert people in ([receiver, giver, giver], [giver, receiver, giver])
        receiver_first += people[0] == receiver
    assert 70 < receiver_first < 130


def test_ioi_corruptions_change_what_they_say():
    made = {c: tasks.make("ioi", PLAIN, n=50, corruption=c).pairs for c in IOI}
    for abc, s2, flip in zip(made["abc"], made["s2"], made["flip"], strict=True):
        assert abc.clean == s2.clean == flip.clean
        clean = names_in(abc.clean)
        giver, receiver = clean[2], next(n for n in clean if n != clean[2])
        assert len({*clean, *names_in(abc.corrupt)}) == 5
        assert names_in(s2.corrupt)[:2] == clean[:2]
        assert names_in(s2.corrupt)[2] not in (giver, receiver)
        assert names_in(flip.corrupt) == [*clean[:2], receiver]


def test_ioi_takes_names_from_the_user():
    own = "Ana,Bo,Cy,Di,Ed,Flo,Gus,Hal,Ida,Jo"
    for pair in tasks.make("ioi", PLAIN, n=30, names=own).pairs:
        assert pair.answers[0].strip() in own.split(",")


@pytest.mark.parametrize("task", ["ioi", "ioi_long"])
def test_names_that_are_not_single_tokens_are_named(task):
    known = "Ana,Bo,Cy,Di,Ed,Flo,Gus,Hal,Ida,Jo".split(",")
    odd = ("Bo", "Ebenezer")
    small = Lexicon("small", lambda text: tuple(range(len(text.split()) + (text[1:] in odd))))
    message = "--names: Bo, Ebenezer are not single tokens of small; 9 of the 10 names that"
    with pytest.raises(MechheadsError, match=message):
        tasks.make(task, small, n=2, names=",".join([*known, "Ebenezer"]))
    names = ",".join([*known, "Kim", "Ebenezer"])
    notice = "--names: Bo, Ebenezer are not single tokens of small: no prompt has them."
    with pytest.warns(MechheadsWarning, match=notice):
        assert tasks.make(task, small, n=2, names=names)


@pytest.mark.shared
@pytest.mark.parametrize("length", [60, 100, 400])
def test_ioi_long_has_the_length_that_was_asked_for(length, published):
    pairs = tasks.make("ioi_long", published, n=40, length=length).pairs
    lengths = [len(published.split(f" {p.clean}")) for p in pairs]
    # The first word of a prompt has no space before it, which can cost a token.
    assert all(length - 3 <= x <= length + 1 for x in lengths)


def test_ioi_long_puts_distractors_between():
    for pair in tasks.make("ioi_long", PLAIN, n=30, distractors=3).pairs:
        people = names_in(pair.clean)
        assert len(people) == 6
        assert len(set(people)) == 5


def test_docstring_asks_for_the_argument_after_the_documented_ones():
    for pair in tasks.make("docstring", PLAIN, n=40).pairs:
        arguments = re.findall(r"\w+", pair.clean.partition("self, ")[2].partition(")")[0])
        documented = re.findall(r":param (\w+):", pair.clean)
        assert len(arguments) == 6
        assert arguments[2:4] == documented
        assert pair.answers == (f" {arguments[4]}",)
        assert pair.clean.endswith("    :param")
        assert {f" {a}" for a in arguments} - {*pair.answers} <= {*pair.wrong}


@pytest.mark.parametrize("corruption", DOCSTRING)
def test_docstring_corruptions_break_the_match_they_say(corruption):
    pair = tasks.make("docstring", PLAIN, n=1, corruption=corruption).pairs[0]

    def parts(text):
        arguments = re.findall(r"\w+", text.partition("self, ")[2].partition(")")[0])
        return arguments, re.findall(r":param (\w+):", text)

    (clean_def, clean_doc), (def_, doc) = parts(pair.clean), parts(pair.corrupt)
    assert (clean_doc != doc) == (
        "doc" in corruption.removeprefix("vary_length_doc_desc") or corruption == "random_random"
    )
    changed = [i for i, (a, b) in enumerate(zip(clean_def, def_, strict=True)) if a != b]
    # The authors' random_def keeps the answer, their random_random does not.
    kept = {"random_random": [2, 3, 4], "random_def": [2, 3], "random_def_doc": [2, 3]}
    assert changed == kept.get(corruption, [4] if "answer" in corruption else [])


def test_docstring_wrong_answers_are_all_names_drawn_for_any_corruption():
    made = {c: tasks.make("docstring", PLAIN, n=20, corruption=c).pairs for c in DOCSTRING}
    for pairs in zip(*(made[c] for c in DOCSTRING if "vary" not in c), strict=True):
        (wrong,) = {pair.wrong for pair in pairs}
        named = {
            f" {a}" for p in pairs for a in re.findall(r"self, (.*)\)", p.corrupt)[0].split(", ")
        }
        named |= {f" {a}" for p in pairs for a in re.findall(r":param (\w+):", p.corrupt)}
        assert {*wrong, *pairs[0].answers} == named
        assert len(wrong) == len(set(wrong)) == 13


def test_greater_than_answers_are_the_later_years():
    for pair in tasks.make("greater_than", PLAIN, n=60).pairs:
        year = re.search(r"year (\d{4}) to", pair.clean)
        assert year is not None
        start = int(year[1])
        assert {int(a) for a in pair.answers} == set(range(start + 1, start // 100 * 100 + 100))
        assert {int(w) for w in pair.wrong} == set(range(start // 100 * 100, start + 1))
        assert f"{start // 100}01 to" in pair.corrupt


@pytest.mark.shared
def test_greater_than_ends_in_the_century_where_years_split_in_two(shared):
    path = shared / "tokenizers" / "gpt2" / "tokenizer.json"
    gpt2 = transformers.PreTrainedTokenizerFast(tokenizer_file=str(path))
    for pair in tasks.make("greater_than", tokenizer_lexicon(gpt2, "gpt2"), n=100).pairs:
        assert re.search(r"to the year 1[1-7]$", pair.clean)
        pieces = gpt2.tokenize(pair.clean)
        assert len(pieces[-5]) == 2  # the two digits of the first year are a token
        assert all(len(gpt2.tokenize(a)) == 1 for a in (*pair.answers, *pair.wrong))


def test_greater_than_ends_in_the_century_where_digits_are_tokens(tiny):
    for pair in tasks.make("greater_than", tiny, n=20).pairs:
        assert re.search(r"to the year 1[1-7]$", pair.clean)


def test_math_answers_are_right_and_corrupted_by_an_operand():
    rules = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}
    prompts = tasks.make(
        "math", PLAIN, n=200, split="all", operations="add,subtract,multiply", shots=1
    )
    seen = set()
    for pair in prompts.pairs:
        for text, result in ((pair.clean, pair.answers), (pair.corrupt, pair.wrong)):
            a, sign, b = re.findall(r"(\d+) (.) (\d+) =$", text)[0]
            assert int(result[0]) == rules[sign](int(a), int(b)) >= 0
            seen.add(sign)
        shot = re.match(r"Calculate: (\d+) (.) (\d+) = (\d+)\n", pair.clean)
        assert shot is not None
        assert rules[shot[2]](int(shot[1]), int(shot[3])) == int(shot[4])
        assert pair.corrupt.startswith(shot[0])
        assert pair.clean.split()[:-2] == pair.corrupt.split()[:-2]
    assert seen == set(rules)


@pytest.mark.parametrize(
    ("task", "n", "options", "message"),
    [
        ("iol", 5, {}, r"Unknown task 'iol'\. Did you mean 'ioi'\?"),
        ("ioi", 0, {}, "--n takes 1 to 1,000,000 prompts, got 0"),
        ("ioi", 5, {"corruption": "flop"}, "value for --corruption: 'flop'. Did you mean 'flip'"),
        ("ioi", 5, {"length": 5}, "unknown flag --length: task ioi has no such option"),
        (
            "ioi",
            5,
            {"names": "Ann,Bob"},
            "2 names are too few: with these options the task needs 10",
        ),
        ("ioi_long", 5, {"length": "many"}, "--length takes a whole number, got 'many'"),
        ("ioi_long", 5, {"length": 10}, "--length takes 60 to 4000 tokens, got 10"),
        ("ioi_long", 5, {"distractors": 9}, "--distractors takes 0 to 5"),
        ("docstring", 5, {"matching": 1}, "needs --matching of 2 or more"),
        ("docstring", 5, {"matching": 90}, r"\d+ argument names are too few"),
        ("greater_than", 5, {"corruption": "02"}, "value for --corruption: '02'"),
        ("math", 5, {"operations": "divide"}, "Unknown operation 'divide'"),
        ("math", 5, {"low": 9, "high": 5}, "math needs --low of 0 or more"),
        ("math", 500, {"low": 0, "high": 3}, "there are only about"),
        ("math", 5, {"high": 10**8}, "at most 9999"),
        ("ioi", 5, {"split": "tset"}, "value for --split: 'tset'. Did you mean 'test'"),
        ("common_sense", 5, {"choices": 9}, "--choices takes 2 to 5 options, got 9"),
        ("retrieval", 5, {"facts": 1}, "--facts takes 2 to 8 facts, got 1"),
        ("syntax", 5, {"shots": -1}, "--shots takes 0 to 1000 solved examples"),
        ("math_calculation", 5, {"high": 2}, "--high takes 4 or more"),
        ("inference", 5, {"kind": "induction"}, "value for --kind: 'induction'"),
        ("nowhere.jsonl", 5, {}, r"No task file nowhere\.jsonl"),
    ],
)
def test_wrong_options_are_named(task, n, options, message):
    with pytest.raises(MechheadsError, match=message):
        tasks.make(task, PLAIN, n=n, **options)


@pytest.mark.shared
def test_ioi_long_refuses_a_length_that_its_distractors_exceed(published):
    with pytest.raises(MechheadsError, match="--length 60 is too short for 5 distractors"):
        tasks.make("ioi_long", published, n=50, length=60, distractors=5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("tasks.make('ioi', object())", "a tokenizer or a Lexicon, got object"),
        ("tasks.make('ioi', words_as_tokens(), n='x')", "n takes a whole number, got 'x'"),
        ("tasks.from_records(None)", "takes a list of records or a frame, got None"),
    ],
)
def test_arguments_of_the_wrong_type_are_named_also_where_types_are_not_checked(call, message):
    program = f"import tasks; from mechheads.prompts import words_as_tokens\n{call}"
    out = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert message in out.stderr.splitlines()[-1]


@pytest.mark.shared
def test_too_few_single_token_words_are_counted_and_the_tokenizer_named(shared):
    path = shared / "models" / "tinyllamas-stories260K"
    small = tokenizer_lexicon(transformers.AutoTokenizer.from_pretrained(path), "stories260K")
    message = r"Only 2 of 182 names are single tokens for the tokenizer of stories260K; .* needs 20"
    with pytest.raises(MechheadsError, match=message):
        tasks.make("ioi", small)
