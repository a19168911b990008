"""Filler prefixes: insertion, attention averages, maths answers, tests, ARM, and the verb."""

import json
import logging
import math
import random
import threading
import time
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest
import torch
from tokenizers import Regex, Tokenizer, pre_tokenizers
from tokenizers import models as tokenizer_models
from transformers import AutoTokenizer, PreTrainedTokenizerFast

import mechheads
from mechheads.engine.generate import generate
from mechheads.errors import MechheadsError
from mechheads.filler.accuracy import Accuracies, Answers, ask, holm, mcnemar
from mechheads.filler.conditions import ARM_C, ARM_PERCENTILE, FILLED, INSTRUCTION, PLACES
from mechheads.filler.insertion import Inserted, insert, make, place_in, shared_places, spaces
from mechheads.filler.mechanism import late_weights, mechanism_of
from mechheads.filler.redistribution import arm, redistribute
from mechheads.filler.weights import (
    Attention,
    aligned,
    all_weights,
    column_means,
    measure_attention,
    sinks_of,
    total_change,
)
from mechheads.metrics.values import is_right, read_answer, same_value
from mechheads.models.hooks import has_hooks
from mechheads.models.load import load
from mechheads.models.model import Model
from mechheads.models.untrained import random_model
from mechheads.prefix import prefix
from mechheads.prompts import Question
from mechheads.prompts.batches import token_ids
from tasks import questions as question_files

TEXT = "Do it.\n\nQuestion: one two\nAnswer: 3\n\nQuestion: four five\nAnswer:"


@pytest.fixture(scope="module")
def mini() -> Model:
    """The embedded model."""
    return mechheads.load("mini", quiet=True)


@pytest.fixture(scope="module")
def questions(mini) -> tuple[Question, ...]:
    """Word problems of one step."""
    return question_files.questions("math_calculation", mechheads.lexicon(mini), n=12)[0].items


def with_tokenizer(tokenizer: Any) -> Model:
    """An untrained model, for its tokenizer."""
    shape = {"n_layers": 1, "d_model": 8, "d_head": 4, "n_heads": 2, "n_ctx": 256, "d_mlp": 8}
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
        assert tuple(prompt.ids[i] for i in prompt.original) == token_ids(mini, question.prompt)
        assert prompt.ids == token_ids(mini, prompt.text)
        assert prompt.tokens == 20
        assert (prompt.cut, prompt.run) == (other.cut, other.run)


@pytest.mark.parametrize("condition", FILLED)
def test_length_counts_tokens_where_fillers_merge(merging, condition):
    asked = [Question(TEXT, ("6",), "f")]
    assert len(token_ids(merging, "/" * 55)) < 55
    (made,) = make(merging, asked, condition, length=55)
    assert made.tokens == 55
    run = text_of(merging, made.ids[made.cut : made.cut + made.run])
    assert made.text == TEXT[: TEXT.rfind("Question")] + run + "Question: four five\nAnswer:"
    assert run.endswith("\n\n")
    if condition == "mless":
        assert run == " ".join("/" * 55) + "\n\n"


def test_a_filler_of_another_number_of_tokens_is_refused_with_its_count(merging):
    asked = [Question(TEXT, ("6",), "f")]
    with pytest.raises(MechheadsError, match="makes 19 or 15 tokens for random, not the 5 of"):
        make(merging, asked, "mless", filler="abc", length=5)


def test_the_cut_is_that_of_the_plain_text_and_never_inside_of_a_token(merging):
    at = TEXT.rfind("Question")
    # Alone, the text before the run has a token less: its line breaks merge.
    made = insert(merging, TEXT, "/ /", at, "\n\n")
    assert text_of(merging, made.ids[1 : made.cut]) == TEXT[:at]
    assert made.cut == len(token_ids(merging, TEXT[:at])) + 1
    with pytest.raises(MechheadsError, match=r"changes how random splits the text.*--filler"):
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
    with pytest.raises(MechheadsError, match="between takes an instruction"):
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
    assert len({len(token_ids(mini, texts[i])) for i in chosen}) == 1


def test_a_filler_that_merges_with_its_neighbours_is_refused(mini):
    with pytest.raises(MechheadsError, match=r"changes how mini splits the text.*--filler"):
        insert(mini, "Anna has 5 apples", "x", 5)


def test_length_0_is_none(mini, questions):
    empty, none = (make(mini, questions, c, length=0) for c in ("mless", "none"))
    assert empty == none
    prompts = {"none": none, "mless": empty}
    some = {name: made[:4] for name, made in prompts.items()}
    said = ask(mini, questions[:4], some, max_tokens=2, stop=("\n",), quiet=True)
    assert said.said["none"] == said.said["mless"]
    assert torch.equal(said.right["none"], said.right["mless"])
    found = measure_attention(mini, prompts, (0, 1))
    assert torch.equal(found.original["none"][:, :-1], found.original["mless"][:, :-1])
    assert found.change.abs().max() == 0
    assert set(found.frame()["panel"]) == {"original"}


def test_column_means_are_those_of_a_double_loop():
    pattern = torch.rand(2, 3, 6, 6).tril()
    found = column_means(pattern)
    for place in ((0, 0), (1, 2)):
        for key in range(5):
            total = [pattern[(*place, query, key)].item() for query in range(key + 1, 6)]
            assert found[(*place, key)].item() == pytest.approx(sum(total) / len(total))
        assert math.isnan(found[(*place, 5)].item())


def test_weights_are_those_of_the_patterns(mini, questions):
    made = make(mini, questions[:1], "mless", length=9)
    (prompt,) = made
    original, full = all_weights(mini, made)
    tokens = torch.tensor([prompt.ids])
    _, cache = mini.run_with_cache(tokens)
    pattern, n = cache["blocks.2.attn.hook_pattern"][0, 5], tokens.shape[1]
    for key in range(n - 1):
        mean = sum(pattern[query, key].item() for query in range(key + 1, n)) / (n - 1 - key)
        assert full[0, 2, 5, key].item() == pytest.approx(mean, abs=1e-6)
    # Of the original tokens: neither the run's keys nor its queries.
    kept = [i for i in range(n) if i < prompt.cut or i >= prompt.cut + prompt.run]
    for place, key in enumerate(kept[:-1]):
        later = [pattern[query, key].item() for query in kept if query > key]
        assert original[0, 2, 5, place].item() == pytest.approx(sum(later) / len(later), abs=1e-6)
    weights, mass = late_weights(mini, made, (2, 5), prompt.cut)
    start = prompt.cut + prompt.run
    for i, query in enumerate(range(start, n)):
        wanted = sum(pattern[query, j].item() for j in range(prompt.cut, start))
        assert mass[0, i].item() == pytest.approx(wanted, abs=1e-6)
        assert weights[0, i].tolist() == pytest.approx([pattern[query, j].item() for j in kept])


def scored(
    seed: int, prompts: int = 8, extra: int = 4
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Causal weights of 6 queries on 10 keys, the same with more keys, and what those take."""
    torch.manual_seed(seed)
    scores = torch.randn(prompts, 6, 10).double()
    hidden = torch.ones(6, 10).triu(5).bool()
    scores = scores.masked_fill(hidden, -torch.inf)
    more = torch.cat([scores, torch.randn(prompts, 6, extra).double()], dim=2).softmax(2)
    return scores.softmax(2), more[..., :10], more[..., 10:].sum(2)


@pytest.mark.parametrize("sink", [False, True])
def test_keys_that_only_join_the_softmax_leave_one_factor_per_query(sink):
    before, now, mass = scored(0)
    found = mechanism_of("mless", before, now, mass, sink=sink)
    assert found.p_value == 1.0
    assert found.factor == pytest.approx(1 - found.mass, abs=1e-12)
    assert found.spread == pytest.approx(0, abs=1e-6)


def test_keys_with_factors_of_their_own_are_noticed_and_noise_is_not():
    before, now, mass = scored(1)
    prompt = torch.linspace(0.5, 1.5, 8).double()[:, None, None]
    keys = torch.linspace(0.7, 1.3, 10).double()
    other = mechanism_of("mless", before, now * prompt * keys, mass)
    assert other.p_value < 1e-4
    # By hand: the spread of one query is that of log(keys), weighted by attention.
    one = mechanism_of("mless", before[:1, 5:], now[:1, 5:] * keys, mass[:1, 5:])
    weights, logs = before[0, 5], keys.log()
    middle = (weights * logs).sum()
    assert one.spread == pytest.approx((weights * (logs - middle) ** 2).sum().sqrt().item())
    assert math.isnan(one.p_value)
    noisy = mechanism_of("mless", before, now * (1 + 0.1 * torch.rand_like(now)), mass)
    assert noisy.p_value > 0.01


@pytest.fixture
def placeless(checkpoint) -> tuple[Any, list[Inserted], list[Inserted]]:
    """A tiny model without positions, prompts for it, and the same with a run."""
    model: Any = load(str(checkpoint("gpt2")))
    with torch.no_grad():
        model.pos_embed.W_pos.zero_()
    names = (("Tom", "Anna"), ("Anna", "James"), ("John", "Tom"), ("James", "John"))
    asked = [Question(f"Then {a} and {b} gave", ("Mary",), "f") for a, b in names]
    plain, made = (
        make(model, asked, c, filler=",", length=6, place="start") for c in ("none", "mless")
    )
    assert made[0].tokens == 6
    return model, plain, made


def test_a_run_without_values_scales_the_first_layer_by_its_factor(placeless):
    model, plain, made = placeless
    cut, run = made[0].cut, made[0].run
    before, _ = late_weights(model, plain, (0, 2), cut)
    now, mass = late_weights(model, made, (0, 2), cut)
    found = mechanism_of("mless", before, now, mass)
    assert 0 < found.mass < 1
    assert found.factor == pytest.approx(1 - found.mass, abs=1e-6)
    assert found.p_value == 1.0
    kept = []

    def empty(v, hook):
        if v.shape[1] > len(plain[0].ids):
            v[:, cut : cut + run] = 0
        return v

    for prompt in (plain[0], made[0]):
        model.run_with_hooks(
            torch.tensor([prompt.ids]),
            fwd_hooks=[
                ("blocks.0.attn.hook_v", empty),
                ("blocks.0.attn.hook_z", lambda z, hook: kept.append(z[0, :, 2])),
            ],
        )
    wanted = kept[0][cut:] * (1 - mass[0])[:, None].float()
    torch.testing.assert_close(kept[1][cut + run :], wanted, rtol=1e-4, atol=1e-6)


def test_keys_that_are_never_seen_change_nothing(placeless):
    """With the run's scores at minus infinity, all is as before in every layer."""
    model, plain, made = placeless
    cut, run = made[0].cut, made[0].run

    def hide(scores, hook):
        if scores.shape[-1] > cut + run:
            scores[:, :, cut + run :, cut : cut + run] = -torch.inf
        return scores

    for layer in range(model.cfg.n_layers):
        model.add_hook(f"blocks.{layer}.attn.hook_attn_scores", hide, is_permanent=True)
    hidden, mass = late_weights(model, made, (1, 2), cut)
    same, _ = late_weights(model, plain, (1, 2), cut)
    ends = [model(torch.tensor([p.ids]))[0, -1] for p in (plain[0], made[0])]
    assert mass.abs().max() == 0
    torch.testing.assert_close(hidden, same, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(*ends, rtol=1e-4, atol=1e-5)
    found = mechanism_of("mless", same, hidden, mass)
    assert found.factor == pytest.approx(1, abs=1e-5)
    assert found.p_value == 1.0


def test_sinks_are_first_tokens_with_many_times_the_usual_weight():
    values = torch.full((3, 1, 2, 6), 0.05)
    values[:, 0, 0, 0] = 0.6
    values[:, 0, 1, 0] = 0.4
    values[..., -1] = torch.nan
    assert sinks_of(values).tolist() == [[True, False]]
    moved = values.clone()
    moved[..., 0] += 1.0
    moved[..., 2] -= 0.02
    change = total_change(values, moved, sinks_of(values))
    assert change[0].tolist() == pytest.approx([0.02, 1.02])


def test_attention_of_the_head_that_moves_most(mini, questions):
    names = ("none", "mful", "mless")
    prompts = {c: make(mini, questions, c, length=12) for c in names}
    kept = aligned(prompts)
    found = measure_attention(mini, prompts, None)
    assert found.changed == "mless"
    # The change by hand: original tokens alone, mean over prompts, less sinks and the last token.
    before, now = (all_weights(mini, kept[c])[0].mean(0) for c in ("none", "mless"))
    sinks = sinks_of(all_weights(mini, kept["none"])[0])
    for place in ((0, 0), (1, 1), found.head):
        keys = range(int(sinks[place]), before.shape[-1] - 1)
        wanted = sum(abs((now[place][key] - before[place][key]).item()) for key in keys)
        assert found.change[place].item() == pytest.approx(wanted, abs=1e-5)
    assert found.change[found.head] == found.change.max()
    layer, head = found.head
    torch.testing.assert_close(found.original["none"].mean(0)[:-1], before[layer, head, :-1])
    frame: Any = found.frame()
    assert set(frame["model"]) == {"mini"}
    assert set(frame["panel"]) == {"original", "full"}
    assert set(frame[frame["condition"] == "none"]["panel"]) == {"original"}
    wide = frame[(frame["condition"] == "mless") & (frame["panel"] == "full")]
    assert len(wide) == len(kept["mless"][0].ids) - 1
    mechanism = found.mechanism("mless")
    assert mechanism is not None
    assert 0 < mechanism.mass < 1
    assert found.plot().to_dict()["data"]


def test_attention_is_saved_whole_and_has_no_mechanism_where_the_run_is_last(
    mini, questions, tmp_path
):
    prompts = {c: make(mini, questions, c, length=5, place="end") for c in ("none", "mless")}
    found = measure_attention(mini, prompts, None)
    assert found.mechanisms == ()
    again = Attention.load(found.save(tmp_path / "a.safetensors"))
    assert again.frame().equals(found.frame())


def test_few_aligned_prompts_are_refused(mini, questions):
    prompts = {c: make(mini, questions[:3], c, length=5) for c in ("none", "mless")}
    with pytest.raises(MechheadsError, match="too few"):
        aligned(prompts)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (r"so \boxed{\frac{1}{2}} or \boxed{7}.", "7"),
        (r"\boxed{\frac{3}{\sqrt{2}}}", r"\frac{3}{\sqrt{2}}"),
        ("It is 12 and then 1,234.5 apples.", "1234.5"),
        ("minus: -3/4", "-3/4"),
        (r"So $\frac{3}{4}$", r"\frac{3}{4}"),
        (".5", "0.5"),
        ("10 - 3", "10 - 3"),
        ("$9^{9^{9}}$ so .5", ".5"),
        ("no number", "no number"),
        (r"\boxed{7", "7"),
    ],
)
def test_answers_are_read(text, wanted):
    assert read_answer(text) == wanted


@pytest.mark.parametrize(
    ("one", "two", "same"),
    [
        ("0.5", r"\frac{1}{2}", True),
        ("1/2", "0.5", True),
        ("1,234", "1234", True),
        (r"\left( 3, \frac{\pi}{2} \right)", r"(3,\pi/2)", True),
        ("2", "3", False),
        ("-1", "1", False),
        (r"\frac{1}{3}", "0.5", False),
        (r"2\sqrt{2}", r"\sqrt{8}", True),
    ],
)
def test_answers_are_compared_as_values(one, two, same):
    assert same_value(one, two) is same


@pytest.mark.parametrize(
    ("said", "right", "fits"),
    [
        (" 08", "8", True),
        (" 9", "8", False),
        ("-1", "1", False),
        ("3", "-3", False),
        (r"\boxed{5!}", "5", False),
        (r"\boxed{5!}", "120", True),
        (r"So we get \boxed{0.50}.", r"\frac{1}{2}", True),
        (r"So $\frac{3}{4}$", "4", False),
        (r"So $\frac{3}{4}$", "0.75", True),
        (".5", "1/2", True),
        ("10 - 3", "-3", False),
        (r"\boxed{q - p}", "p - q", False),
        (" The bank.", "bank", True),
        (" market", "bank", False),
        (r"\boxed{Evelyn}", r"\text{Evelyn}", True),
    ],
)
def test_right_answers_are_words_or_values(said, right, fits):
    assert is_right(said, (right,)) is fits


@pytest.mark.parametrize("tower", ["9^{9^{9^{9}}}", "2^{999999999}", "99999999!", "(1000!)!"])
def test_what_may_never_end_is_not_evaluated(tower):
    start = time.monotonic()
    assert not is_right(f"\\boxed{{{tower}}}", ("7",))
    assert is_right(f"\\boxed{{{tower}}}", (tower,))
    assert time.monotonic() - start < 5


def test_answers_are_compared_in_other_threads_and_in_silence(caplog):
    found = []
    with caplog.at_level(logging.DEBUG):
        other = threading.Thread(target=lambda: found.append(is_right("0.5", ("1/2",))))
        other.start()
        other.join()
    assert found == [True]
    assert not [r for r in caplog.records if r.name.startswith("math_verify")]


def test_mcnemar_by_hand():
    before = torch.tensor([True] * 6 + [False] * 4)
    after = torch.tensor([True, *[False] * 5, True, *[False] * 3])
    # 5 lost, 1 won: two-sided binomial 2 * (1 + 6) / 64.
    assert mcnemar(before, after) == pytest.approx(14 / 64)
    assert mcnemar(before, before) == 1.0


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def answered(model: str, *rows: list[int]) -> Answers:
    """A model that answered so, under as many conditions as there are rows."""
    names = ("none", "mless", "mful")[: len(rows)]
    right = {name: torch.tensor(row).bool() for name, row in zip(names, rows, strict=True)}
    said = {name: ("",) * len(row) for name, row in zip(names, rows, strict=True)}
    return Answers(model, names, (0, 5, 5)[: len(rows)], right, said, dict.fromkeys(names, 0.5))


def test_p_values_are_corrected_over_all_models_together():
    base, worse = [1] * 6 + [0] * 2, [0] * 8
    frame: Any = Accuracies((answered("a", base, worse), answered("b", base, worse, base))).frame()
    # Alone 2 / 64; three comparisons, of which the two smallest are equal.
    p = {(row.model, row.condition): row.p_value for row in frame.itertuples()}
    assert p["a", "mless"] == pytest.approx(3 * 2 / 64)
    assert p["b", "mless"] == pytest.approx(3 * 2 / 64)
    assert p["b", "mful"] == 1.0
    assert math.isnan(p["a", "none"])


def test_what_was_not_asked_has_a_row_without_numbers(tmp_path):
    some = answered("a", [1, 0, 1, 1], [0, 0, 1, 1])
    found = replace(some, conditions=("none", "70", "mless"), tokens=(0, None, 5))
    frame: Any = Accuracies((found,)).frame()
    assert frame["condition"].tolist() == ["none", "70", "mless"]
    assert frame.iloc[1, 2:].isna().all()
    assert frame["n"].tolist()[::2] == [4, 4]
    saved = Accuracies((found,)).save(tmp_path / "a.safetensors")
    assert Accuracies.load(saved).frame().equals(frame)


def test_accuracies_have_intervals(mini, questions):
    prompts = {c: make(mini, questions, c, length=5) for c in ("none", "mless")}
    found = ask(mini, questions, prompts, max_tokens=4, stop=("\n",), quiet=True)
    frame = Accuracies((found,)).frame()
    assert frame.columns.tolist() == COLUMNS
    first = frame.iloc[0]
    assert first["correct"] >= 10  # mini does this task
    assert first["low"] <= first["accuracy"] <= first["high"]
    # Wilson's interval by hand.
    n, p, z = 12, first["accuracy"], 1.959964
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    assert first["low"] == pytest.approx(middle - half, abs=1e-6)
    assert math.isnan(first["p_value"])
    assert frame["tokens"].tolist() == [0, 5]
    # One token is never enough for a line break after the answer.
    short = ask(mini, questions[:4], {"none": prompts["none"][:4]}, max_tokens=1, stop=("\n",))
    assert short.cut_off == {"none": 1.0}
    assert found.cut_off["none"] < 1


def test_redistribution_moves_the_nearest_to_zero_and_keeps_their_signs():
    x = torch.randn(12, 50, generator=torch.Generator().manual_seed(3))
    x[0, :3] = 0.0
    found = redistribute(x, ARM_C, ARM_PERCENTILE, seed=0)
    moved = found != x
    sizes = x.abs()
    eps = 1.4826 * (sizes - sizes.median()).abs().median() * ARM_C
    wanted = (sizes < eps).float().mean()
    assert 0.02 < wanted < 0.25
    assert moved.float().mean() == pytest.approx(wanted.item())
    assert sizes[moved].max() <= sizes[~moved].min()
    assert ((found >= 0) == (x >= 0))[moved].all()
    assert found[moved].min() >= x.min()
    assert found[moved].max() <= torch.quantile(x, ARM_PERCENTILE / 100) + 0.05
    assert (found[moved].abs() > eps).float().mean() > 0.5
    assert torch.equal(found, redistribute(x, ARM_C, ARM_PERCENTILE, seed=0))
    assert not torch.equal(found, redistribute(x, ARM_C, ARM_PERCENTILE, seed=1))


@pytest.mark.parametrize(("c", "share"), [(0.0, 0.02), (50.0, 0.25)])
def test_redistribution_moves_2_to_25_percent(c, share):
    x = torch.randn(10, 40, generator=torch.Generator().manual_seed(0))
    moved = redistribute(x, c, 99.5, seed=0) != x
    assert moved.float().mean().item() == pytest.approx(share)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_arm_acts_on_the_activation_before_a_gate(checkpoint, kind):
    model: Any = load(str(checkpoint(kind)))
    tokens = torch.tensor([token_ids(model, "Then Tom and Anna gave")])
    plain = model(tokens)
    kept = {}

    def keep(value, hook):
        kept[hook.name] = value

    inside = "blocks.0.mlp.hook_pre", "blocks.0.mlp.hook_pre_linear", "blocks.0.hook_mlp_out"
    names = [name for name in inside if name in model.hook_dict]
    with arm(model, c=0.3, percentile=90.0, seed=5):
        changed = model.run_with_hooks(tokens, fwd_hooks=[(name, keep) for name in names])
    mlp = model.blocks[0].mlp
    moved = redistribute(mlp.act_fn(kept[inside[0]])[0], 0.3, 90.0, seed=5)
    assert (inside[1] in kept) == (kind == "llama")
    after = moved * kept[inside[1]] + mlp.b_in if kind == "llama" else moved[None]
    torch.testing.assert_close(kept[inside[2]], after @ mlp.W_out + mlp.b_out)
    assert not torch.allclose(plain, changed, atol=1e-3)
    assert torch.equal(model(tokens), plain)
    assert not has_hooks(model)


def test_arm_changes_answers_and_not_by_who_runs_together(mini, questions):
    whole = torch.ones(1, mini.cfg.n_layers, mini.cfg.n_heads)
    texts = [q.prompt for q in questions[:4]]
    with arm(mini, c=5.0, percentile=100.0):
        said = generate(mini, texts, whole, max_tokens=3, quiet=True)[0]
        alone = [generate(mini, [text], whole, max_tokens=3, quiet=True)[0][0] for text in texts]
    assert said == alone
    assert said != generate(mini, texts, whole, max_tokens=3, quiet=True)[0]


COLUMNS = [
    "model",
    "condition",
    "n",
    "correct",
    "accuracy",
    "low",
    "high",
    "p_value",
    "tokens",
    "cut_off",
]


def test_a_run_has_all_its_files(tmp_path, capsys):
    prefix(
        conditions="none,mless,mful,random,arm",
        n=12,
        length=10,
        max_tokens=2,
        models="mini,mini-sparse",
        out=str(tmp_path),
        quiet=True,
    )
    (folder,) = tmp_path.iterdir()
    said = capsys.readouterr().out
    assert said.endswith("report.html\n")
    assert "differ" in said
    frame = pd.read_csv(folder / "accuracy.csv")
    assert frame.columns.tolist() == COLUMNS
    assert frame["condition"].tolist() == ["none", "mless", "mful", "random", "arm"] * 2
    assert frame["tokens"].tolist() == [0, 10, 10, 10, 0] * 2
    found = json.loads((folder / "result.json").read_text())["headline"]
    answers = pd.read_csv(folder / "answers.csv")
    of_arm = frame[frame["condition"] == "arm"]
    for model, correct in zip(of_arm["model"], of_arm["correct"], strict=True):
        listed = answers[(answers["model"] == model) & (answers["condition"] == "arm")]
        assert listed["right"].sum() == correct
    weights = pd.read_csv(folder / "attention.csv")
    columns = ["model", "condition", "panel", "position", "token", "weight", "low", "high"]
    assert weights.columns.tolist() == columns
    assert set(weights["condition"]) == {"none", "mless", "mful", "random"}
    assert 0 <= found["parts"]["mini, mless"]["one_factor_per_query_p"] <= 1
    assert found["parts"]["mini, mless"]["accuracy"] == pytest.approx(frame["accuracy"][1])
    assert "bootstrap interval of the mean over prompts" in (folder / "report.md").read_text()


def test_sweep_points_that_do_not_fit_are_named_and_have_empty_rows(tmp_path, capsys):
    given: dict[str, Any] = {"n": 4, "length": 4, "max_tokens": 10, "conditions": "none,mless"}
    prefix(sweep="length,place", **given, out=str(tmp_path), quiet=True)
    (folder,) = tmp_path.iterdir()
    assert "length 70: not asked: a prompt of" in capsys.readouterr().out
    lengths = pd.read_csv(folder / "sweep_length.csv")
    assert lengths["length"].tolist() == list(range(0, 80, 10))
    assert lengths["accuracy"].isna().tolist() == [False] * 7 + [True]
    assert lengths["tokens"].tolist()[:7] == list(range(0, 70, 10))
    places = pd.read_csv(folder / "sweep_place.csv")
    assert places["place"].fillna("none").tolist() == ["none", *PLACES]
    # Four questions of several lengths: accuracies alone, and why.
    report = (folder / "report.md").read_text()
    assert "length 70" in report
    assert "no attention was measured: only" in report
    assert pd.read_csv(folder / "attention.csv").empty


def test_random_places_have_attention_too(tmp_path):
    given: dict[str, Any] = {"place": "random", "conditions": "none,mless", "max_tokens": 1}
    prefix(n=12, length=4, **given, out=str(tmp_path), quiet=True)
    (folder,) = tmp_path.iterdir()
    assert not pd.read_csv(folder / "attention.csv").empty


def test_problems_from_a_file_begin_with_the_instruction(tmp_path, monkeypatch):
    file = tmp_path / "maths.jsonl"
    rows = [{"problem": f"What is {a}\n\n+ 1?", "answer": str(a + 1)} for a in range(6)]
    file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    seen = []

    def see(model, prompts, *args, **kwargs):
        seen.extend(prompts)
        return generate(model, prompts, *args, **kwargs)

    monkeypatch.setattr("mechheads.filler.accuracy.answer", see)
    given: dict[str, Any] = {"conditions": "none,mless", "quiet": True, "max_tokens": 2, "n": 6}
    prefix(task=str(file), length=6, out=str(tmp_path / "runs"), **given)
    (folder,) = (tmp_path / "runs").iterdir()
    assert set(pd.read_csv(folder / "accuracy.csv")["n"]) == {6}
    assert all(text.startswith(f"{INSTRUCTION}\n\nQuestion: What") for text in seen[:6])
    assert all(text.startswith(f"{INSTRUCTION}\n\n//////\n\nQuestion:") for text in seen[6:])
    with pytest.raises(MechheadsError, match="between takes an instruction"):
        prefix(task=str(file), instruction="", out=str(tmp_path / "more"), **given)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"task": "math_calc"}, "Did you mean"),
        ({"head": "L9H9"}, "L9H9"),
        ({"head": "first"}, "first"),
        ({"filler": " "}, "--filler"),
        ({"word": ""}, "--word"),
        ({"length": -1}, "--length takes 0 or more"),
        ({"length": 0}, "--head auto takes"),
        ({"length": 110}, "smaller --length"),
        ({"max_tokens": 0}, "--max-tokens takes 1 or more"),
        ({"conditions": "mless"}, "none among them"),
        ({"conditions": "none,mles"}, "Did you mean"),
        ({"conditions": "none,arm"}, "besides none"),
        ({"sweep": "lenght"}, "Did you mean"),
        ({"models": "mini,mini"}, "twice"),
        ({"n": 1}, "--n takes 4 or more"),
        ({"arm_c": -1.0}, "--arm-c"),
        ({"arm_percentile": 0.0}, "--arm-percentile"),
        ({"instruction": "Think."}, "--instruction"),
        ({"task": "math"}, "between takes an instruction"),
    ],
)
def test_wrong_input_is_named_before_anything_is_asked(wrong, words, tmp_path, monkeypatch):
    def never(*args, **kwargs):
        raise AssertionError("something was asked")

    monkeypatch.setattr("mechheads.filler.accuracy.answer", never)
    given: dict[str, Any] = {"n": 4, "length": 6} | wrong
    with pytest.raises(MechheadsError, match=words):
        prefix(**given, out=str(tmp_path), quiet=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.shared
def test_math500_is_read_as_it_is(shared):
    found = question_files.from_file(shared / "data" / "math500" / "test.jsonl")
    assert len(found) == 500
    assert found[0].answers == (r"\left( 3, \frac{\pi}{2} \right)",)
    # Every gold answer is equal to itself, boxed.
    wrong = [q for q in found if not is_right(f"So \\boxed{{{q.answers[0]}}}.", q.answers)]
    assert not wrong
