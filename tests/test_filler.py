"""Filler prefixes: insertion, attention averages, maths answers, tests, ARM, and the verb."""

import json
import math
import random
from typing import Any

import pandas as pd
import pytest
import torch

import mechheads
from mechheads import models
from mechheads.batches import token_ids
from mechheads.errors import MechheadsError
from mechheads.filler import insertion
from mechheads.filler.accuracy import Accuracies, ask, holm, mcnemar
from mechheads.filler.insertion import insert, make, place_in
from mechheads.filler.maths import is_right, read_answer, same_value
from mechheads.filler.redistribution import arm, redistribute
from mechheads.filler.weights import (
    aligned,
    all_weights,
    column_means,
    late_weights,
    measure_attention,
    mechanism_of,
)
from mechheads.generation import answer
from mechheads.prefix import prefix
from mechheads.prompts import Question
from tasks import free


@pytest.fixture(scope="module")
def mini() -> models.Model:
    """The embedded model."""
    return mechheads.load("mini", quiet=True)


@pytest.fixture(scope="module")
def questions(mini) -> tuple[Question, ...]:
    """Word problems of one step."""
    return free.questions("math_calculation", mechheads.lexicon(mini), n=12)[0].items


@pytest.mark.parametrize("place", insertion.PLACES)
@pytest.mark.parametrize("condition", ["mless", "mful", "random"])
def test_original_tokens_stay_as_they_are(mini, questions, condition, place):
    made = make(mini, questions, condition, length=20, place=place)
    filler = make(mini, questions, "mless", length=20, place=place)
    for prompt, question, other in zip(made, questions, filler, strict=True):
        plain = token_ids(mini, question.prompt)
        assert tuple(prompt.ids[i] for i in prompt.original) == plain
        # As many tokens in every condition, or nearly: "he" has three for this model.
        assert other.run - prompt.run in range(3)
        assert prompt.cut == other.cut
        assert prompt.ids == token_ids(mini, prompt.text)
        assert prompt.run >= 16


def test_places(mini):
    text = "Do it.\n\nQuestion: one two\nAnswer: 3\n\nQuestion: four five\nAnswer:"
    rng = random.Random(0)
    assert place_in(text, "start", rng)[0] == 0
    assert text[place_in(text, "between", rng)[0] :].startswith("Question: four")
    assert place_in(text, "end", rng)[0] == len(text)
    assert text[place_in(text, "random", rng)[0]] == " "
    assert place_in("5 + 3 =", "between", rng)[0] == 0


def test_a_filler_that_merges_with_its_neighbours_is_refused(mini):
    with pytest.raises(MechheadsError, match=r"changes how mini splits the text.*--filler"):
        insert(mini, "Anna has 5 apples", "x", 5)


def test_length_0_is_none(mini, questions):
    assert make(mini, questions, "mless", length=0) == make(mini, questions, "none")


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
    found = all_weights(mini, made)
    tokens = torch.tensor([made[0].ids])
    _, cache = mini.run_with_cache(tokens)
    pattern, n = cache["blocks.2.attn.hook_pattern"][0, 5], tokens.shape[1]
    for key in (0, 3, n - 2):
        mean = sum(pattern[query, key].item() for query in range(key + 1, n)) / (n - 1 - key)
        assert found[0, 2, 5, key].item() == pytest.approx(mean, abs=1e-6)
    cut, run = made[0].cut, made[0].run
    late, mass = late_weights(mini, made, (2, 5), cut)
    later = list(range(cut + run, n))
    wanted = sum(pattern[q, cut : cut + run].sum().item() for q in later) / len(later)
    assert mass[0].item() == pytest.approx(wanted, abs=1e-6)
    key = cut + run + 1
    seen = [query for query in later if query > key]
    wanted = sum(pattern[q, key].item() for q in seen) / len(seen)
    assert late[0, cut + 1].item() == pytest.approx(wanted, abs=1e-6)
    assert late.shape[1] == n - run - 1


def test_one_factor_is_seen_as_one_and_two_as_two():
    torch.manual_seed(0)
    before = torch.rand(8, 6).double() + 0.5
    factor = 0.5 + 0.2 * torch.rand(8, 1).double()
    mass = torch.full((8,), 0.3).double()
    one = mechanism_of(before, before * factor, mass)
    assert one.p_value == 1.0
    assert one.explained == pytest.approx(1.0)
    assert one.mass == pytest.approx(0.3)
    assert one.factor == pytest.approx(factor.log().mean().exp().item())
    keys = torch.linspace(0.3, 0.9, 6).double()
    two = mechanism_of(before, before * keys * (1 + 0.01 * torch.rand(8, 6)), mass)
    assert two.p_value < 1e-6
    assert two.spread > 0.1
    noisy = mechanism_of(before, before * 0.6 * (1 + 0.05 * torch.randn(8, 6)), mass)
    assert noisy.p_value > 0.01


def test_keys_that_are_never_seen_change_nothing(checkpoint):
    """Without positions, and with the run's scores at minus infinity, all is as before."""
    model: Any = models.load(str(checkpoint("gpt2")))
    with torch.no_grad():
        model.pos_embed.W_pos.zero_()
    asked = [
        Question(f"Then {a} and {b} gave", ("Mary",), "f")
        for a, b in (("Tom", "Anna"), ("Anna", "James"), ("John", "Tom"))
    ]
    plain, made = (
        make(model, asked, c, filler=" ,", length=6, place="start") for c in ("none", "mless")
    )
    cut, run = made[0].cut, made[0].run
    assert run >= 6

    def hide(scores, hook):
        if scores.shape[-1] > cut + run:
            scores[:, :, cut + run :, cut : cut + run] = -torch.inf
        return scores

    before = all_weights(model, plain)
    for layer in range(model.cfg.n_layers):
        model.add_hook(f"blocks.{layer}.attn.hook_attn_scores", hide, is_permanent=True)
    try:
        hidden, mass = late_weights(model, made, (1, 2), cut)
        same, _ = late_weights(model, plain, (1, 2), cut)
        ends = [model(torch.tensor([p.ids]))[0, -1] for p in (plain[0], made[0])]
    finally:
        model.reset_hooks(including_permanent=True)
    assert mass.abs().max() == 0
    torch.testing.assert_close(hidden, same, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(*ends, rtol=1e-4, atol=1e-5)
    assert before.shape[0] == 3


def test_attention_of_the_head_that_moves_most(mini, questions):
    prompts = {c: make(mini, questions, c, length=12) for c in ("none", "mless", "mful")}
    chosen = aligned(prompts)
    assert len(chosen) >= 2
    found = measure_attention(mini, prompts, None)
    assert found.change[found.head] == found.change.max()
    layer, head = found.head
    base = all_weights(mini, [prompts["none"][i] for i in chosen])[:, layer, head]
    assert torch.equal(found.weights["none"].nan_to_num(), base.nan_to_num())
    assert found.original("mless").shape == found.original("none").shape
    frame = found.frame()
    assert frame.columns.tolist() == [
        "condition",
        "panel",
        "position",
        "token",
        "weight",
        "low",
        "high",
    ]
    assert set(frame["panel"]) == {"original", "full"}
    assert set(frame[frame["condition"] == "none"]["panel"]) == {"original"}
    mechanism = found.mechanism("mless")
    assert mechanism is not None
    assert 0 < mechanism.mass < 1
    assert found.plot().to_dict()["data"]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (r"so \boxed{\frac{1}{2}} or \boxed{7}.", "7"),
        (r"\boxed{\frac{3}{\sqrt{2}}}", r"\frac{3}{\sqrt{2}}"),
        ("It is 12 and then 1,234.5 apples.", "1,234.5"),
        ("minus: -3/4", "-3/4"),
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


def test_right_answers_are_words_or_values():
    assert is_right(" 08", ("8",))
    assert is_right(" The bank.", ("bank",))
    assert is_right("So we get \\boxed{0.50}.", (r"\frac{1}{2}",))
    assert not is_right(" 9", ("8",))
    assert not is_right(" market", ("bank",))


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


def test_accuracies_have_intervals(mini, questions):
    prompts = {c: make(mini, questions, c, length=5) for c in ("none", "mless")}
    found = ask(mini, questions, prompts, max_tokens=4, stop=("\n",), quiet=True)
    frame = Accuracies((found,)).frame()
    assert frame.columns.tolist() == [
        "model",
        "condition",
        "n",
        "correct",
        "accuracy",
        "low",
        "high",
        "p_value",
    ]
    first = frame.iloc[0]
    assert first["correct"] >= 10  # mini does this task
    assert first["low"] <= first["accuracy"] <= first["high"]
    # Wilson's interval by hand.
    n, p, z = 12, first["accuracy"], 1.959964
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    assert first["low"] == pytest.approx(middle - half, abs=1e-6)
    assert math.isnan(first["p_value"])


def test_redistribution_moves_the_smallest_outward():
    x = torch.tensor([[[0.1, -0.2, 0.0, 3.0, -4.0, 0.3, 5.0, 6.0, 7.0, 8.0]]])
    found = redistribute(x, 0.3, 2.0, seed=0)
    moved = found != x
    assert moved[0, 0].tolist() == [True, True, True, *[False] * 7]
    assert found[0, 0, :2].tolist() == pytest.approx([0.4, -0.4])
    assert abs(found[0, 0, 2].item()) == pytest.approx(0.4)
    assert torch.equal(found, redistribute(x, 0.3, 2.0, seed=0))
    assert torch.equal(redistribute(x, 0.0, 2.0, seed=0), x)


def test_arm_leaves_the_model_as_it_was(mini, questions):
    whole = torch.ones(1, 4, 8)
    texts = [q.prompt for q in questions[:4]]
    tokens = torch.tensor([token_ids(mini, texts[0])])
    before = mini(tokens)
    with arm(mini, share=0.5, reach=20.0):
        changed = mini(tokens)
        said = answer(mini, texts, whole, max_tokens=3, quiet=True)
    assert not torch.allclose(before, changed, atol=1e-2)
    assert torch.equal(mini(tokens), before)
    assert said != answer(mini, texts, whole, max_tokens=3, quiet=True)
    with arm(mini, share=0.0):
        assert torch.equal(mini(tokens), before)
    with pytest.raises(MechheadsError, match="--arm-share"), arm(mini, share=2.0):
        pass


def test_a_run_has_all_its_files(tmp_path, capsys):
    prefix(
        conditions="none,mless,mful,random,arm",
        sweep="length,place,filler",
        n=6,
        length=20,
        models="mini,mini-sparse",
        out=str(tmp_path),
        quiet=True,
    )
    (folder,) = tmp_path.iterdir()
    said = capsys.readouterr().out
    assert said.endswith("report.html\n")
    assert "differ" in said
    frame = pd.read_csv(folder / "accuracy.csv")
    assert frame.columns.tolist() == [
        "model",
        "condition",
        "n",
        "correct",
        "accuracy",
        "low",
        "high",
        "p_value",
    ]
    assert len(frame) == 2 * 5
    weights = pd.read_csv(folder / "attention.csv")
    assert weights.columns.tolist() == [
        "model",
        "condition",
        "panel",
        "position",
        "token",
        "weight",
        "low",
        "high",
    ]
    for name in ("length", "place", "filler"):
        swept = pd.read_csv(folder / f"sweep_{name}.csv")
        assert swept.columns.tolist()[1] == name
    result = json.loads((folder / "result.json").read_text())
    assert "mini, mless: accuracy" in result["headline"]


def test_problems_from_a_file(tmp_path):
    file = tmp_path / "maths.jsonl"
    rows = [{"problem": f"What is {a} + 1?", "answer": str(a + 1)} for a in range(6)]
    file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    prefix(task=str(file), n=6, length=6, max_tokens=4, out=str(tmp_path / "runs"), quiet=True)
    (folder,) = (tmp_path / "runs").iterdir()
    assert set(pd.read_csv(folder / "accuracy.csv")["n"]) == {6}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"task": "math_calc"}, "Did you mean"),
        ({"head": "L9H9"}, "L9H9"),
        ({"head": "first"}, "first"),
        ({"filler": " "}, "--filler"),
        ({"length": -1}, "--length takes 0 or more"),
        ({"length": 500}, "Use shorter prompts"),
        ({"conditions": "mless"}, "none among them"),
        ({"conditions": "none,mles"}, "Did you mean"),
        ({"conditions": "none,arm"}, "besides none"),
        ({"sweep": "lenght"}, "Did you mean"),
        ({"models": "mini,mini"}, "twice"),
        ({"n": 1}, "--n takes 4 or more"),
        ({"word": "antidisestablishmentarianism", "length": 5}, "Use a --word of one token"),
    ],
)
def test_wrong_input_is_named_and_writes_nothing(wrong, words, tmp_path):
    given: dict[str, Any] = {"n": 4, "length": 6} | wrong
    with pytest.raises(MechheadsError, match=words):
        prefix(**given, out=str(tmp_path), quiet=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.shared
def test_math500_is_read_as_it_is(shared):
    found = free.from_file(shared / "data" / "math500" / "test.jsonl")
    assert len(found) == 500
    assert found[0].answers == (r"\left( 3, \frac{\pi}{2} \right)",)
    # Every gold answer is equal to itself, boxed.
    wrong = [q for q in found if not is_right(f"So \\boxed{{{q.answers[0]}}}.", q.answers)]
    assert not wrong
