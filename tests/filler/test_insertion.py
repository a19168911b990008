"""Runs of filler in prompts: where they go, how many tokens they have, what stays as it is."""

import random
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, pre_tokenizers
from tokenizers import models as tokenizer_models
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from mechheads.errors import MechheadsError
from mechheads.filler.conditions import FILLED, PLACES
from mechheads.filler.insertion import insert, make, place_in, shared_places, spaces
from mechheads.models.model import Model, encoder_of
from mechheads.models.untrained import random_model
from mechheads.prompts import Question

TEXT = "Do it.\n\nQuestion: one two\nAnswer: 3\n\nQuestion: four five\nAnswer:"


def with_tokenizer(tokenizer: Any) -> Model:
    """An untrained model, for its tokenizer."""
    shape: dict[str, Any] = {
        "n_layers": 1,
        "d_model": 8,
        "d_head": 4,
        "n_heads": 2,
        "n_ctx": 256,
        "d_mlp": 8,
    }
    return random_model(tokenizer, **shape, act_fn="relu", d_vocab=len(tokenizer))


@pytest.fixture(scope="module")
def merging() -> Model:
    """Its tokenizer merges slashes and line breaks with each other and with what is before them,
    but two line breaks only where no word follows, as GPT-2's does.
    """
    letters = [chr(i) for i in range(32, 127)]
    merges = [("\n", "\n"), ("/", "/"), (" ", "/"), (" ", "h"), (" h", "e"), ("h", "e")]
    words = ["<bos>", "<eos>", "\n", *letters, *(a + b for a, b in merges)]
    vocabulary = {word: i for i, word in enumerate(words)}
    inner = Tokenizer(tokenizer_models.BPE(vocab=vocabulary, merges=merges))
    inner.pre_tokenizer = pre_tokenizers.Split(
        Regex(r" ?[A-Za-z]+| ?\d+| ?[^\sA-Za-z\d]+|\s+(?!\S)|\s+"), "isolated"
    )
    return with_tokenizer(
        PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<bos>", eos_token="<eos>")
    )


def text_of(model: Model, ids: tuple[int, ...]) -> str:
    tokenizer: Any = model.tokenizer
    return "".join(tokenizer.convert_ids_to_tokens(ids))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("condition", FILLED)
def test_original_tokens_stay_and_runs_have_exactly_the_tokens_asked_for(
    mini, questions, condition, place
):
    made = make(mini, questions, condition, length=20, place=place)
    filler = make(mini, questions, "mless", length=20, place=place)
    for prompt, question, other in zip(made, questions, filler, strict=True):
        assert tuple(prompt.ids[i] for i in prompt.original) == encoder_of(mini).ids(
            question.prompt
        )
        assert prompt.ids == encoder_of(mini).ids(prompt.text)
        assert prompt.tokens == 20
        assert (prompt.cut, prompt.run) == (other.cut, other.run)


@pytest.mark.parametrize("condition", FILLED)
def test_length_counts_tokens_where_fillers_merge(merging, condition):
    asked = [Question(TEXT, ("6",), "f")]
    assert len(encoder_of(merging).ids("/" * 55)) < 55
    (made,) = make(merging, asked, condition, length=55)
    assert made.tokens == 55
    run = text_of(merging, made.ids[made.cut : made.cut + made.run])
    assert made.text == TEXT[: TEXT.rfind("Question")] + run + "Question: four five\nAnswer:"
    assert run.endswith("\n\n")
    if condition == "mless":
        assert run == " ".join("/" * 55) + "\n\n"


def test_a_filler_of_another_number_of_tokens_is_refused_with_its_count(merging):
    asked = [Question(TEXT, ("6",), "f")]
    with pytest.raises(MechheadsError, match="is 19 or 15 tokens for random, not the 5 of"):
        make(merging, asked, "mless", filler="abc", length=5)


def test_the_cut_is_that_of_the_plain_text_and_never_inside_of_a_token(merging):
    at = TEXT.rfind("Question")
    # Alone, the text before the run has a token less: its line breaks merge.
    made = insert(merging, TEXT, "/ /", at, "\n\n")
    assert text_of(merging, made.ids[1 : made.cut]) == TEXT[:at]
    assert made.cut == len(encoder_of(merging).ids(TEXT[:at])) + 1
    with pytest.raises(MechheadsError, match=r"changes how random tokenizes the text.*--filler"):
        insert(merging, "who is he here", "/", len("who is h"))


@pytest.mark.shared
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("condition", FILLED)
@pytest.mark.parametrize("name", ["gpt2", "pythia-neox-20B"])
def test_runs_of_real_tokenizers_are_what_was_inserted(shared, name, condition, place):
    model = with_tokenizer(AutoTokenizer.from_pretrained(shared / "tokenizers" / name))
    asked = [Question(TEXT, ("6",), "f")]
    (made,) = make(model, asked, condition, place=place)
    tokenizer: Any = model.tokenizer
    assert made.tokens == 55
    run = tokenizer.decode(made.ids[made.cut : made.cut + made.run])
    start = tokenizer.decode(made.ids[1 : made.cut])
    assert made.text == start + run + TEXT[len(start) :]
    if condition == "mless":
        assert run.strip() == " ".join("/" * 55)


def test_places(mini):
    rng = random.Random(0)
    assert place_in(mini, TEXT, "start", "", rng) == 0
    assert TEXT[place_in(mini, TEXT, "between", "", rng) :].startswith("Question: four")
    assert place_in(mini, TEXT, "end", "", rng) == len(TEXT)
    assert TEXT[place_in(mini, TEXT, "random", "", rng)] == " "
    with pytest.raises(MechheadsError, match="between needs an instruction"):
        place_in(mini, "5 + 3 =", "between", "", rng)


def test_the_run_is_after_the_instruction_whatever_the_question_holds(mini):
    asked = [Question("Question: a\n\nQuestion: b\n\nc\nAnswer:", ("1",), "f")]
    (made,) = make(mini, asked, "mless", length=3, instruction="Think.")
    assert made.text.startswith("Think.\n\n///\n\nQuestion: a\n\n")
    (plain,) = make(mini, asked, "none", length=3, instruction="Think.")
    assert plain.text == f"Think.\n\n{asked[0].prompt}"


def test_random_places_can_be_shared(mini, questions):
    texts = [q.prompt for q in questions]
    chosen = shared_places(mini, texts, seed=0)
    cuts = {next(c for c, at in spaces(mini, texts[i]).items() if at == chosen[i]) for i in chosen}
    assert len(chosen) >= 4
    assert len(cuts) == 1
    assert len({len(encoder_of(mini).ids(texts[i])) for i in chosen}) == 1


def test_a_filler_that_merges_with_its_neighbours_is_refused(mini):
    with pytest.raises(MechheadsError, match=r"changes how mini tokenizes the text.*--filler"):
        insert(mini, "Anna has 5 apples", "x", 5)
