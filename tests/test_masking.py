"""Masking: selections, text metrics, the probe, the experiment and its verb."""

import json
import math
import stat
import sys
from typing import Any

import pandas as pd
import pytest
import torch

import mechheads
from mechheads import models
from mechheads.errors import MechheadsError
from mechheads.mask import mask
from mechheads.masking import Masking, mask_heads, quality
from mechheads.masking.matrix import Matrix, cross_mask
from mechheads.masking.probe import features, probe_functions
from mechheads.masking.selection import elbow, random_heads, read_sizes
from mechheads.prompts import Question, Questions
from tasks import free


def test_sizes_are_numbers_shares_or_what_fits():
    assert read_sizes("16,2", 32) == (2, 16)
    assert read_sizes("10%,50%", 270) == (27, 135)
    assert read_sizes(None, 32) == (2, 4, 8, 16)
    assert read_sizes(None, 270) == (16, 32, 64, 128)
    assert read_sizes(None, 3) == (1,)
    for wrong in ("0", "33", "x", "150%", ""):
        with pytest.raises(MechheadsError, match="--k"):
            read_sizes(wrong, 32)


def test_random_heads_are_never_top_heads():
    ranking = [(i, j) for i in range(4) for j in range(8)]
    for k in (1, 8, 16):
        drawn = random_heads(ranking, k, 20, seed=1)
        assert len(drawn) == 20
        for heads in drawn:
            assert len(set(heads)) == k
            assert not set(heads) & set(ranking[:k])
    assert len({tuple(heads) for heads in random_heads(ranking, 8, 20, seed=1)}) > 10
    with pytest.raises(MechheadsError, match="no 17 random heads"):
        random_heads(ranking, 17, 1, seed=1)


def test_the_elbow_of_a_bent_line():
    assert elbow([10.0, 9.0, 8.0, 1.0, 0.9, 0.8, 0.7]) == 3
    assert elbow([1.0, 1.0, 1.0]) == 3


def test_every_metric_by_hand():
    said, gold, whole = [" The Paris."], [("Paris", "paris city")], [" Rome"]
    assert quality.exact(said, gold, whole) == [1.0]
    assert quality.exact([" Pari"], gold, whole) == [0.0]
    # ROUGE-1: {the, cat, sat} and {the, cat}: precision 2/3, recall 1.
    assert quality.rouge1(["the cat sat"], [("the cat",)], [""]) == [pytest.approx(0.8)]
    # BLEU of equal text is 1, of text without a word in common 0.
    assert quality.bleu(["a b c d"], [("a b c d",)], [""]) == [pytest.approx(1.0)]
    assert quality.bleu(["a b c d"], [("w x y z",)], [""])[0] < 0.2
    # chrF2 of "ab" and "abc": orders 1 and 2 count; precision 1 and 1, recall 2/3 and 1/2, mean
    # 7/12; F2 = 5 P R / (4 P + R).
    r = 7 / 12
    assert quality.chrf(["ab"], [("abc",)], [""])[0] == pytest.approx(5 * r / (4 + r), abs=0.01)


def test_the_composite_accuracy_has_three_alternatives(monkeypatch):
    monkeypatch.setattr(quality, "similarities", lambda said, gold: None)
    gold = [("the big cat",)]
    assert quality.composite(["x y z w"], gold, ["x y z w"]) == [1.0]  # as the whole model
    assert quality.composite(["the cat"], gold, ["x y z w"]) == [1.0]  # ROUGE-1 0.8
    assert quality.composite(["a dog"], gold, ["x y z w"]) == [0.0]
    monkeypatch.setattr(quality, "similarities", lambda said, gold: [0.61])
    assert quality.composite(["a dog"], gold, ["x y z w"]) == [1.0]


def test_comet_runs_the_program_that_is_named(tmp_path):
    program = tmp_path / "comet-score"
    program.write_text(
        f"#!{sys.executable}\n"
        "import sys\n"
        "args = dict(zip(sys.argv[1::2], sys.argv[2::2]))\n"
        "lines = [open(args[k]).read().splitlines() for k in ('-s', '-t', '-r')]\n"
        "for i, (s, t, r) in enumerate(zip(*lines)):\n"
        "    print(f'hyp.txt\\tSegment {i}\\tscore: {float(t == r):.4f}')\n"
        "print('hyp.txt\\tscore: 0.5')\n",
        encoding="utf-8",
    )
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    judged = quality.find("comet", str(program)).judge(
        ["one\ntwo", "", "x"], [("a",), ("b",), ("c",)], ["one two", "", "y"]
    )
    assert judged == [1.0, 1.0, 0.0]
    with pytest.raises(MechheadsError, match="unbabel-comet in an environment of its own"):
        quality.find("comet", str(tmp_path / "missing")).judge(["a"], [("a",)], ["a"])
    program.write_text(f"#!{sys.executable}\nprint('hello')\n", encoding="utf-8")
    with pytest.raises(MechheadsError, match="0 scores for 1 answers"):
        quality.find("comet", str(program)).judge(["a"], [("a",)], ["a"])
    with pytest.raises(MechheadsError, match="Unknown text metric"):
        quality.find("chr")


def test_masking_no_head_changes_nothing(tiny):
    questions = _questions("names")
    qualities = [quality.find("exact"), quality.find("chrf")]
    ranking = [(i, j) for i in range(2) for j in range(4)]
    panel = mask_heads(
        tiny, questions, ranking, [2, 4], qualities, draws=3, scale=1.0, max_tokens=4, quiet=True
    )
    assert all(texts == panel.said[0] for texts in panel.said)
    assert [c.selection for c in panel.conditions] == ["none", *["top", *["random"] * 3] * 2]
    assert torch.equal(panel.values[0], panel.values[1])


def test_a_head_that_says_the_answer_is_missed(checkpoint):
    """L0H1 writes " Mary" whatever is asked: without it, and only without it, she is not named."""
    model: Any = models.load(str(checkpoint("gpt2")))
    token = model.tokenizer.encode(" Mary")[0]
    with torch.no_grad():
        for block in model.blocks:
            for part in (block.mlp.W_out, block.mlp.b_out, block.attn.W_O, block.attn.b_O):
                part.zero_()
        attention = model.blocks[0].attn
        attention.W_V[1].zero_()
        attention.b_V[1].zero_()
        attention.b_V[1, 0] = 1.0
        word = model.W_U[:, token] - model.W_U.mean(1)
        attention.W_O[1, 0] = 8 * word / word.norm()
    ranking = [(0, 1), *((i, j) for i in range(2) for j in range(4) if (i, j) != (0, 1))]
    for positions in ("last", "all"):
        panel = mask_heads(
            model,
            _questions("names"),
            ranking,
            [1, 3],
            [quality.find("exact")],
            positions=positions,
            max_tokens=1,
            quiet=True,
        )
        for condition, value in zip(panel.conditions, panel.values[:, 0].mean(1), strict=True):
            assert value == (0.0 if condition.selection == "top" else 1.0)
        found = Masking("m", "given", positions, (panel,), {"exact": "exact match"}, ("exact",))
        assert found.falls("exact") == {"names": (1.0, 0.0)}
        assert found.plot().to_dict()["data"]


def test_the_matrix_of_two_functions(checkpoint):
    model = models.load(str(checkpoint("gpt2")))
    sets = [_questions("one"), _questions("two")]
    ranking = [(i, j) for i in range(2) for j in range(4)]
    found = cross_mask(
        model,
        sets,
        {"one": ranking, "two": ranking[::-1]},
        2,
        quality.find("chrf"),
        draws=2,
        max_tokens=3,
        quiet=True,
    )
    assert found.values.shape == (2, 2)
    single = mask_heads(
        model, sets[1], ranking, [2], [quality.find("chrf")], draws=0, max_tokens=3, quiet=True
    )
    assert found.values[0, 1].item() == pytest.approx(single.values[1, 0].mean().item())
    assert found.whole[1].item() == pytest.approx(single.values[0, 0].mean().item())
    part = found.part(["one"], ["two"])
    assert isinstance(part, Matrix)
    assert part.values.shape == (1, 1)
    assert found.part(["three"], ["two"]) is None


def test_the_probe_finds_the_head_that_tells_functions_apart():
    model = mechheads.load("mini", quiet=True)
    lexicon = mechheads.lexicon(model)
    sets = [
        free.questions(name, lexicon, n=24, seed=0)[0] for name in ("retrieval", "math_calculation")
    ]
    found = probe_functions(model, sets, epochs=100, quiet=True)
    assert found.functions == ("Retrieval", "Math Calculation")
    assert found.chance == pytest.approx(0.5)
    assert found.accuracy > 0.8
    assert len(found.ranking("Retrieval")) == 32
    again = probe_functions(model, sets, epochs=100, quiet=True)
    assert torch.equal(found.importance, again.importance)
    with pytest.raises(MechheadsError, match="needs two or more"):
        probe_functions(model, sets[:1], quiet=True)


def test_features_are_z_where_the_answer_is_said(tiny):
    question = Question("Then Mary gave", ("John Tom",), "names")
    (found,) = features(tiny, [question])
    tokens = tiny.to_tokens("Then Mary gave John Tom")
    _, cache = tiny.run_with_cache(tokens)
    wanted = torch.stack([cache[f"blocks.{i}.attn.hook_z"][0, -3:-1].mean(0) for i in range(2)])
    torch.testing.assert_close(found, wanted.flatten(0, 1))


def test_questions_from_files(tmp_path):
    file = tmp_path / "q.jsonl"
    rows = [
        {"question": "Who?", "answer": "Ann", "context": "Ann came.", "function": "Retrieval"},
        {"question": "2+2?", "answer": ["4", "four"]},
    ]
    file.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    first, second = free.from_file(file)
    assert first == Question("Ann came.\n\nQuestion: Who?\nAnswer:", ("Ann",), "Retrieval")
    assert second == Question("Question: 2+2?\nAnswer:", ("4", "four"), "q")
    for wrong, words in (
        ("", "empty"),
        ("[1]", "none of CogQA's"),
        ("{", "no JSON"),
        ('{"question": "x"}', "line 1 has no answer"),
        ('{"answer": "x"}', "line 1 has no question"),
        ("3", "line 1 is no object"),
    ):
        file.write_text(wrong, encoding="utf-8")
        with pytest.raises(MechheadsError, match=words):
            free.from_file(file)
    with pytest.raises(MechheadsError, match="No question file"):
        free.from_file(tmp_path / "missing.jsonl")


def test_a_run_has_all_its_files(tmp_path, capsys):
    mask(
        tasks="retrieval,math_calculation",
        n=4,
        rank=4,
        draws=2,
        k="2,10%",
        max_tokens=4,
        matrix=True,
        out=str(tmp_path),
        quiet=True,
    )
    (folder,) = tmp_path.iterdir()
    assert capsys.readouterr().out.endswith("report.html\n")
    frame = pd.read_csv(folder / "masking.csv")
    assert frame.columns.tolist() == ["function", "selection", "k", "draw", "metric", "value"]
    assert set(frame["k"]) == {0, 2, 3}
    assert set(frame["selection"]) == {"none", "top", "random"}
    said = [json.loads(line) for line in (folder / "generations.jsonl").read_text().splitlines()]
    assert len(said) == 2 * 4 * (1 + 2 * 3)
    assert set(said[0]) == {"function", "selection", "k", "draw", "prompt", "answer", "gold"}
    again = Masking.load(folder / "masking.safetensors")
    totals: list[Any] = [table["value"].sum() for table in (again.frame(), frame)]
    assert math.isclose(*totals, rel_tol=1e-6)
    assert "chrF" in (folder / "report.html").read_text()
    assert (folder / "matrix.csv").is_file()
    ranked = pd.read_csv(folder / "ranking.csv")
    assert len(ranked) == 64


def test_questions_of_a_file_are_ranked_by_the_probe(tmp_path):
    file = tmp_path / "q.jsonl"
    rows = [
        {"question": f"{a} + {b}", "answer": str(a + b), "function": "Sum"}
        for a in range(3)
        for b in range(4)
    ]
    rows += [
        {"question": f"Say {name}", "answer": name, "function": "Copy"}
        for name in ("Mary", "John", "Tom", "Anna", "James", "Paul", "Mark", "Lucy")
    ]
    file.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    mask(
        tasks=str(file),
        method="probe",
        n=4,
        rank=4,
        draws=2,
        k="4",
        max_tokens=2,
        out=str(tmp_path / "runs"),
        quiet=True,
    )
    (folder,) = (tmp_path / "runs").iterdir()
    assert set(pd.read_csv(folder / "masking.csv")["function"]) == {"Copy", "Sum"}
    with pytest.raises(MechheadsError, match="no corrupted prompts"):
        mask(tasks=str(file), method="patch", out=str(tmp_path), quiet=True)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"tasks": "retrieva"}, "Did you mean"),
        ({"method": "prob"}, "Unknown method"),
        ({"k": "33"}, "the model has 32"),
        ({"k": "17"}, "fewer than 17 other heads"),
        ({"metrics": "chr"}, "Unknown text metric"),
        ({"n": 2}, "--n takes 4 or more"),
        ({"scale": 2.0}, "--scale"),
        ({"max_tokens": 0}, "--max-tokens"),
        ({"draws": -1}, "--draws"),
        ({"tasks": "retrieval", "method": "probe"}, "needs two or more"),
        ({"tasks": "retrieval,retrieval"}, "twice"),
    ],
)
def test_wrong_input_is_named_and_writes_nothing(wrong, words, tmp_path):
    given: dict[str, Any] = {"tasks": "retrieval", "n": 4, "rank": 4, "max_tokens": 2} | wrong
    with pytest.raises(MechheadsError, match=words):
        mask(**given, out=str(tmp_path), quiet=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.shared
def test_cogqa_runs_as_it_is(shared, tinystories):
    file = shared / "data" / "cogqa" / "test.json"
    sets = free.questions(str(file), mechheads.lexicon(tinystories), n=6)
    names = {part.name for part in sets}
    assert {"Retrieval", "Math Calculation", "Logical Reasoning"} <= names
    assert {*free.LOW_ORDER, *free.HIGH_ORDER} <= names | {""}
    short = Questions(
        "Retrieval",
        tuple(q for q in sets[0].items if len(q.prompt) < 600)[:3],
    )
    heads = [(i, j) for i in range(6) for j in range(6)]
    panel = mask_heads(
        tinystories, short, heads, [4], [quality.find("chrf")], draws=2, max_tokens=4, quiet=True
    )
    assert panel.values.shape == (4, 1, len(short))


def _questions(name: str) -> Questions:
    items = tuple(
        Question(f"Then {a} gave", ("Mary",), name) for a in ("Tom", "Anna", "James", "John")
    )
    return Questions(name, items)
