"""Spans: named parts of prompts, and the tokens they cover."""

import pytest
import transformers

import tasks
from mechheads import MechheadsError, load
from mechheads.models.model import encoder_of
from mechheads.prompts import Pair, Prompts, Span, fill
from mechheads.prompts.encoder import Encoder
from mechheads.prompts.positions import chosen_spans, common_spans, span_positions

SENTENCE = "Then, Mary and John went.  Mary 🙂 met José in 1732"


@pytest.fixture(
    scope="module",
    params=["mini", "gpt2", "pythia-neox-20B", "tinyllamas-stories15M", "tinyllamas-stories260K"],
)
def encoder(request, shared):
    if request.param == "mini":
        return encoder_of(load("mini"))
    folder = shared / ("models" if "llama" in request.param else "tokenizers") / request.param
    read = transformers.PreTrainedTokenizerFast
    tokenizer = (
        transformers.AutoTokenizer.from_pretrained(folder)
        if "llama" in request.param
        else read(tokenizer_file=str(folder / "tokenizer.json"), bos_token="<|endoftext|>")
    )
    return Encoder(request.param, tokenizer, "llama" in request.param, 2048, 2**20)


class Slow:
    """A tokenizer that keeps no offsets."""

    def __init__(self, tokenizer):
        self.inner, self.is_fast, self.bos_token_id = tokenizer, False, tokenizer.bos_token_id

    def encode(self, text, **options):
        return self.inner.encode(text, **options)

    def decode(self, ids):
        return self.inner.decode(ids)


def prompts(clean, spans, **more):
    made = tuple(Span(name, *where) for name, where in spans.items())
    return Prompts("own", "logit_diff", (Pair(clean, "?", (" a",), (" b",), spans=made, **more),))


def marked(clean, word, nth=0):
    begin = -1
    for _ in range(nth + 1):
        begin = clean.index(word, begin + 1)
    return begin, begin + len(word)


@pytest.mark.shared
@pytest.mark.parametrize(
    ("word", "nth"),
    [("Mary", 0), ("Mary", 1), ("John went", 0), (" and ", 0), ("🙂", 0), ("José", 0), ("1732", 0)],
)
def test_a_span_covers_all_tokens_with_its_characters_and_no_others(word, nth, encoder):
    made = prompts(SENTENCE, {"A": marked(SENTENCE, word, nth)})
    ((positions,),) = span_positions(encoder, made, ["A"])
    ids = encoder.ids(SENTENCE)
    assert encoder.decode([ids[i] for i in positions]).strip() == word.strip()
    assert positions == tuple(range(positions[0], positions[-1] + 1))
    # Nothing else has them: without these tokens, the text has one fewer.
    rest = encoder.decode([token for i, token in enumerate(ids) if i not in positions])
    assert rest.count(word.strip()) == SENTENCE.count(word.strip()) - 1


@pytest.mark.shared
@pytest.mark.parametrize("text", [SENTENCE, " Then it went", "\nHi there", "a\n    :param b: c"])
def test_a_tokenizer_without_offsets_finds_the_same_words(text, encoder):
    slow = Encoder("slow", Slow(encoder.tokenizer), encoder.prepend_bos, 2048, 2**20)
    for at, (fast, decoded) in enumerate(
        zip(encoder.offsets(text), slow.offsets(text), strict=True)
    ):
        if text[slice(*fast)].strip():  # spaces alone belong to no word
            assert decoded == fast, at


def test_tokens_that_do_not_spell_the_text_have_no_offsets(tiny):
    slow = Encoder("slow", Slow(tiny.tokenizer), True, 64, 2**20)
    with pytest.raises(MechheadsError, match=r"The tokens of slow do not spell 'Mary xyz'"):
        slow.offsets("Mary xyz")


def test_bos_shifts_positions_by_one(checkpoint):
    folder, made = str(checkpoint("gpt2")), prompts("The Mary and John", {"A": (4, 8)})
    with_bos, without = load(folder, prepend_bos=True), load(folder, prepend_bos=False)
    assert span_positions(encoder_of(with_bos), made, ["A", "END"]) == [[(2,), (4,)]]
    assert span_positions(encoder_of(without), made, ["A", "END"]) == [[(1,), (3,)]]


@pytest.mark.parametrize("where", [(3, 4), (17, 19)])
def test_a_span_without_a_token_is_named_with_its_prompt(where, tiny):
    made = prompts("The Mary and John", {"HOLE": where}, source="own.jsonl, line 7")
    message = rf"own.jsonl, line 7 \('The Mary and John'\): the span 'HOLE' \[\[{where[0]}, "
    with pytest.raises(MechheadsError, match=message):
        span_positions(encoder_of(tiny), made, ["HOLE"])


def test_a_filled_template_is_what_format_makes_and_its_fields_are_marked():
    template, values = "{{{X}}} and {Y:>4}, {X}", {"X": "Mary", "Y": 7}
    text, spans = fill(template, values)
    assert text == template.format(**values)
    assert [(s.name, text[s.begin : s.end]) for s in spans] == [
        ("X", "Mary"),
        ("Y", "   7"),
        ("X", "Mary"),
    ]
    text, spans = fill("{a} {b} {}", {"a": 1, "b": 2, "": 3}, {"": "LAST", "a": "FIRST"})
    assert (text, spans) == ("1 2 3", (Span("LAST", 4, 5), Span("FIRST", 0, 1)))


@pytest.mark.parametrize(
    ("span", "message"),
    [
        (("END", 0, 1), "END is the last token of every prompt"),
        (("", 0, 1), "expected a name"),
        (("A", -1, 1), r"The span 'A' is \[-1, 1\]"),
        (("A", 2, 2), "less than its end"),
    ],
)
def test_what_cannot_be_a_span_is_refused(span, message):
    with pytest.raises(MechheadsError, match=message):
        Span(*span)


def test_spans_are_no_part_of_the_text():
    one, two = prompts("The Mary", {"A": (0, 3)}), prompts("The Mary", {})
    assert one == two
    assert one.digest() == two.digest()
    assert len({*one.pairs, *two.pairs}) == 1


def test_only_spans_that_all_prompts_have_are_common():
    made = prompts("The Mary", {"B": (4, 8), "A": (0, 3)}) + prompts("Mary", {"B": (0, 4)})
    assert common_spans(made) == ["B", "END"]
    assert chosen_spans(made, None) == ["B", "END"]
    assert chosen_spans(made, "END") == ["END"]
    assert chosen_spans(made, ["END", "B", "END"]) == ["END", "B"]
    for wanted, message in (
        ("A", r"Only 1 of 2 prompts of own have the span 'A'. All have: B, END."),
        ("b", r"Unknown span 'b'. Did you mean 'B'\? Choose from: B, END."),
        ([], r"spans got no name. Choose from: B, END."),
    ):
        with pytest.raises(MechheadsError, match=message):
            chosen_spans(made, wanted)


def test_spans_of_token_ids_are_positions(tiny):
    rows = [[5, 6, 7, 8, 9], [6, 5, 7, 8, 9]]
    same = tasks.from_tokens(rows, rows[::-1], [1, 1], [2, 2], spans={"B": [4, 1], "A": 3})
    assert common_spans(same) == ["B", "A", "END"]
    found = span_positions(encoder_of(tiny), same, ["A", "B", "END"])
    assert found == [[(3,), (1, 4), (4,)]] * 2
    each = tasks.from_tokens(rows, rows[::-1], [1, 1], [2, 2], spans=[{"A": 0}, {"A": (1,)}])
    assert span_positions(encoder_of(tiny), each, ["A"]) == [[(0,)], [(1,)]]


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ({"A": 5}, r"Prompt 1 of own: the span 'A' is 5, expected positions from 0 to 4"),
        ({"A": -1}, "the span 'A' is -1"),
        ({"A": []}, r"the span 'A' is \[\]"),
        ({"A": True}, "the span 'A' is True"),
        ({"A": "x"}, "the span 'A' is 'x'"),
        ({"END": 2}, r"the span 'END' cannot be used. END is the last token"),
        ([{"A": 1}], r"Task own has 2 prompts; 'spans' must be a table"),
        ([{"A": 1}, 3], "or a list with one per prompt"),
    ],
)
def test_wrong_positions_of_token_ids_are_named(spans, message):
    rows = [[5, 6, 7, 8, 9], [6, 5, 7, 8, 9]]
    with pytest.raises(MechheadsError, match=message):
        tasks.from_tokens(rows, rows[::-1], [1, 1], [2, 2], spans=spans)
