"""Masking: selections, text metrics, the probe, the experiment and its verb."""

import json
import math
import stat
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import mechheads
from mechheads.errors import MechheadsError
from mechheads.mask import make_questions, mask
from mechheads.masking import Masking, mask_heads
from mechheads.masking.experiment import Condition, Fall, Panel
from mechheads.masking.matrix import Matrix, compare_orders, cross_mask
from mechheads.masking.probe import features, fit_probe, probe_functions
from mechheads.masking.report import broken, broken_section
from mechheads.masking.selection import elbow, overlap, random_heads, read_sizes
from mechheads.metrics import text as quality
from mechheads.models.load import load
from mechheads.prompts import Question, Questions
from mechheads.prompts.partitions import split_questions, split_sets
from mechheads.scoring.registry import METHODS
from tasks import questions as question_files


def test_sizes_are_numbers_shares_or_what_fits():
    assert read_sizes("16,2", 32) == (2, 16)
    assert read_sizes("10%,50%", 270) == (27, 135)
    assert read_sizes(None, 32) == (1, 2, 4, 8)
    assert read_sizes(None, 270) == (8, 16, 32, 64)
    assert read_sizes(None, 3) == (1,)
    for wrong in ("0", "33", "x", "150%", "", "nan%", "inf%", "nan"):
        with pytest.raises(MechheadsError, match="--k"):
            read_sizes(wrong, 32)
    with pytest.raises(MechheadsError, match="--matrix-k 33"):
        read_sizes("33", 32, "--matrix-k")


def test_random_heads_are_never_top_heads():
    ranking = [(i, j) for i in range(4) for j in range(8)]
    for k in (1, 8, 15):
        drawn = random_heads(ranking, k, 12, seed=1)
        assert len({frozenset(heads) for heads in drawn}) == 12
        for heads in drawn:
            assert len(set(heads)) == k
            assert not set(heads) & set(ranking[:k])
    assert random_heads(ranking, 8, 5, seed=1) == random_heads(ranking, 8, 12, seed=1)[:5]
    with pytest.raises(MechheadsError, match="fewer than 17 other heads"):
        random_heads(ranking, 17, 1, seed=1)


def test_there_are_as_many_draws_as_sets():
    ranking = [(0, i) for i in range(8)]
    (only,) = random_heads(ranking, 4, 5, seed=0)
    assert set(only) == set(ranking[4:])
    assert len(random_heads(ranking, 3, 50, seed=0)) == 10  # 3 of 5


def test_another_functions_heads_are_spared_where_enough_remain():
    ranking = [(0, i) for i in range(8)]
    for heads in random_heads(ranking, 2, 5, seed=0, spared=[(0, 2), (0, 3)]):
        assert set(heads) <= set(ranking[4:])
    assert random_heads(ranking, 2, 5, 0, ranking[2:7]) == random_heads(ranking, 2, 5, 0)


def test_overlap_is_the_share_of_common_heads():
    assert overlap([[(0, 0), (0, 1)], [(0, 1), (0, 2)], [(0, 3), (0, 4)]]) == pytest.approx(1 / 6)
    assert math.isnan(overlap([[(0, 0)]]))


def test_the_elbow_of_a_bent_line():
    assert elbow([10.0, 9.0, 8.0, 1.0, 0.9, 0.8, 0.7]) == 3
    assert elbow([1.0, 1.0, 1.0]) == 3


def test_every_metric_by_hand():
    said, gold, whole = [" The Paris."], [("Paris", "paris city")], [" Rome"]
    assert quality.exact(said, gold, whole) == [1.0]
    assert quality.exact([" Pari"], gold, whole) == [0.0]
    # ROUGE-1: {the, cat, sat} and {the, cat}: precision 2/3, recall 1.
    assert quality.rouge1(["the cat sat"], [("the cat",)], [""]) == [pytest.approx(0.8)]
    # BLEU of "the cat sat" and "the cat ran": 2/3 of words, 1/2 of pairs, no triple, which counts
    # half of one.
    wanted = (2 / 3 * 1 / 2 * 1 / 2) ** (1 / 3)
    assert quality.bleu(["the cat sat"], [("the cat ran",)], [""]) == [pytest.approx(wanted)]
    # BLEU of equal text is 1, of text without a word in common 0.
    assert quality.bleu(["a b c d"], [("a b c d",)], [""]) == [pytest.approx(1.0)]
    assert quality.bleu(["a b c d"], [("w x y z",)], [""])[0] < 0.2
    # chrF2 of "ab" and "abc": orders 1 and 2 count; precision 1 and 1, recall 2/3 and 1/2, mean
    # 7/12; F2 = 5 P R / (4 P + R).
    r = 7 / 12
    assert quality.chrf(["ab"], [("abc",)], [""])[0] == pytest.approx(5 * r / (4 + r), abs=0.01)


@pytest.mark.parametrize(
    ("said", "right", "same"),
    [
        ("A", "A", True),
        (" a.", "A", True),
        ("The", "A", False),
        ("", "A", False),
        ("...", "!", False),
        ("the cat", "A cat", True),
        ("-5", "5", False),
        ("(-5).", "-5", True),
        (".5", "5", False),
        ("-.5", ".5", False),
        ("$5", "5", True),
        ("+3", "3", False),
        ("'Paris'", "paris", True),
        ("-", "", False),
    ],
)
def test_right_answers_by_exact_match(said, right, same):
    assert quality.exact([said], [(right,)], [""]) == [float(same)]


class Embedder:
    """The number of letters a and of letters b, as a direction."""

    def encode(self, texts: list[str], normalize_embeddings: bool) -> list[np.ndarray]:
        assert normalize_embeddings
        found = [np.array([text.count("a"), text.count("b")], float) for text in texts]
        return [vector / max(1e-9, np.linalg.norm(vector)) for vector in found]


def test_similarity_is_the_cosine_with_the_most_similar_right_answer():
    found = quality.similarities(Embedder(), ["ab", "b"], [("b", "a"), ("aab", "a")])
    assert found == pytest.approx([0.5**0.5, 0.2**0.5])


def test_the_composite_accuracy_has_three_alternatives():
    gold = [("the big cat",)]
    plain, similar = quality.composite(), quality.composite(Embedder())
    assert plain.label == "composite accuracy (no embeddings)"
    assert similar.label == "composite accuracy"
    for judge in (plain.judge, similar.judge):
        assert judge(["x y z w"], gold, ["x y z w"]) == [1.0]  # as the whole model
        assert judge([" "], gold, [""]) == [1.0]
        assert judge(["the cat"], gold, ["x y z w"]) == [1.0]  # ROUGE-1 0.8
        assert judge(["dog"], gold, ["x y z w"]) == [0.0]
    assert plain.judge(["abba"], gold, ["x y z w"]) == [0.0]
    assert similar.judge(["abba"], gold, ["x y z w"]) == [1.0]  # cosine 0.71


@pytest.fixture
def comet_score(tmp_path) -> Path:
    """A program that prints as comet-score does: 1 where answer and reference are the same. It
    notes every start in a file beside it.
    """
    program = tmp_path / "comet-score"
    program.write_text(
        f"#!{sys.executable}\n"
        "import sys\n"
        "open(__file__ + '.starts', 'a').write('.')\n"
        "args = dict(zip(sys.argv[1::2], sys.argv[2::2]))\n"
        "lines = [open(args[k]).read().splitlines() for k in ('-s', '-t', '-r')]\n"
        "for i, (s, t, r) in enumerate(zip(*lines)):\n"
        "    print(f'hyp.txt\\tSegment {i}\\tscore: {float(t == r):.4f}')\n"
        "print('hyp.txt\\tscore: 0.5')\n",
        encoding="utf-8",
    )
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    return program


def test_comet_runs_the_program_that_is_named(comet_score):
    judged = quality.find("comet", str(comet_score)).judge(
        ["one\ntwo", "", "x"], [("a",), ("b",), ("c",)], ["one two", "", "y"]
    )
    assert judged == [1.0, 1.0, 0.0]
    with pytest.raises(MechheadsError, match=r"version 2 or newer.*--comet-command \"/opt"):
        quality.find("comet", str(comet_score / "missing"))
    with pytest.raises(MechheadsError, match="is no command"):
        quality.find("comet", "'comet-score")
    with pytest.raises(MechheadsError, match="Unknown text metric"):
        quality.find("chr")
    comet_score.write_text(f"#!{sys.executable}\nprint('hello')\n", encoding="utf-8")
    with pytest.raises(MechheadsError, match="0 scores for 1 answers"):
        quality.find("comet", str(comet_score)).judge(["a"], [("a",)], ["a"])


def test_comet_starts_once_a_panel_and_all_metrics_have_a_figure(tiny, comet_score):
    qualities = [quality.find(name, str(comet_score)) for name in quality.NAMES]
    ranking = [(i, j) for i in range(2) for j in range(4)]
    panel = mask_heads(
        tiny, _questions("names"), ranking, [1, 2], qualities, draws=2, max_tokens=3, quiet=True
    )
    assert comet_score.with_name("comet-score.starts").read_text() == "."
    assert panel.of("none", 0, "comet").tolist() == [[1.0] * 4]
    for i, texts in enumerate(panel.said):
        same = [float(a.split() == b.split()) for a, b in zip(texts, panel.said[0], strict=True)]
        assert panel.values[i, panel.metrics.index("comet")].tolist() == same
    found = Masking(
        "m", "given", "last", (panel,), {q.name: q.label for q in qualities}, ("exact",)
    )
    drawn: Any = found.plot().to_dict()
    curves = [trace for trace in drawn["data"] if "name" in trace]
    assert len({trace["marker"]["symbol"] for trace in curves}) == 2 * len(quality.NAMES)
    assert tuple(drawn["layout"]["yaxis"]["range"]) == (0, 1.02)


def test_masking_no_head_changes_nothing(tiny):
    questions = _questions("names")
    qualities = [quality.find("exact"), quality.find("chrf")]
    ranking = [(i, j) for i in range(2) for j in range(4)]
    panel = mask_heads(
        tiny, questions, ranking, [2, 3], qualities, draws=3, scale=1.0, max_tokens=4, quiet=True
    )
    assert all(texts == panel.said[0] for texts in panel.said)
    assert [c.selection for c in panel.conditions] == ["none", *["top", *["random"] * 3] * 2]
    assert torch.equal(panel.values[0], panel.values[1])


def test_a_head_that_says_the_answer_is_missed(checkpoint):
    """L0H1 writes " Mary" whatever is asked: without it, and only without it, she is not named."""
    model: Any = load(str(checkpoint("gpt2")))
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
        assert found.falls("exact") == {"names": Fall(1.0, 0.0, 1.0, 1.0)}
        assert found.plot().to_dict()["data"]
        assert len(broken(panel)) == 4


def test_the_matrix_of_two_functions(checkpoint):
    model = load(str(checkpoint("gpt2")))
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
    torch.testing.assert_close(
        torch.stack([found.lost[name].mean(1) for name in found.tested], dim=1),
        found.random - found.values,
    )
    single = mask_heads(
        model, sets[1], ranking, [2], [quality.find("chrf")], draws=0, max_tokens=3, quiet=True
    )
    assert found.values[0, 1].item() == pytest.approx(single.values[1, 0].mean().item())
    assert found.whole[1].item() == pytest.approx(single.values[0, 0].mean().item())
    part = found.part(["one"], ["two"])
    assert isinstance(part, Matrix)
    assert part.values.shape == (1, 1)
    assert found.part(["three"], ["two"]) is None
    assert set(found.frame().columns) >= {"lost", "low", "high"}


def test_the_two_orders_are_compared_with_an_interval():
    def matrix(masked: str, tested: str, lost: list[float]) -> Matrix:
        cell = torch.zeros(1, 1)
        return Matrix(
            (masked,),
            (tested,),
            1,
            "exact",
            "",
            cell,
            cell,
            cell[0],
            {tested: torch.tensor([lost])},
        )

    found = compare_orders(
        matrix("low", "high", [0.5] * 4), matrix("high", "low", [0.0, 0.2, 0.0, 0.2])
    )
    assert found.up == pytest.approx((0.5, 0.5, 0.5))
    assert found.down[0] == pytest.approx(0.1)
    assert found.difference[0] == pytest.approx(0.4)
    assert found.difference[1] < 0.4 < found.difference[2]
    assert "0.50 (0.50 to 0.50)" in found.sentence


def test_intervals_are_paired_over_questions():
    """Top and random differ by the same on every question: however far these are apart."""
    conditions = [Condition("none", 0, 0, ()), Condition("top", 1, 0, ((0, 0),))]
    conditions += [Condition("random", 1, i, ((0, 1 + i),)) for i in range(2)]
    whole = torch.tensor([1.0, 0.8, 0.6, 0.4])
    values = torch.stack([whole, whole - 0.4, whole - 0.2, whole])[:, None]
    panel = Panel(
        "f", (), ("p",) * 4, (("g",),) * 4, tuple(conditions), (("",) * 4,) * 4, ("chrf",), values
    )
    fall = panel.fall("chrf")
    assert (fall.top, fall.random) == pytest.approx((0.4, 0.1))
    assert (fall.more, fall.low, fall.high) == pytest.approx((0.3, 0.3, 0.3))
    (row,) = panel.rows("chrf")
    assert (row["more_low"], row["more_high"]) == pytest.approx((0.3, 0.3))
    assert row["top_low"] < row["top"] < row["top_high"]
    assert row["overlap"] == 0
    bare = replace(panel, conditions=tuple(conditions[:2]), values=values[:2])
    assert math.isnan(bare.rows("chrf")[0]["more"])
    assert math.isnan(bare.fall("chrf").random)


def test_nothing_broken_is_said():
    conditions = (Condition("none", 0, 0, ()), Condition("top", 1, 0, ((0, 0),)))
    values = torch.zeros(2, 0, 1)
    panel = Panel("f", (), ("p",), (("Ann",),), conditions, (("Ann",), ("Ann",)), (), values)
    assert "1 are right with all heads" in broken_section(panel).text
    wrong = replace(panel, said=(("Bob",), ("Bob",)))
    assert "none is right even" in broken_section(wrong).text
    lost = replace(panel, said=(("Ann",), ("Bob",)))
    assert broken_section(lost).frame is not None


def test_the_head_that_carries_the_class_comes_first():
    torch.manual_seed(0)
    z = torch.randn(80, 6, 8)
    labels = torch.arange(80) % 2
    z[:, 3, 0] += 4.0 * labels - 2
    before = torch.get_rng_state()
    importance, right = fit_probe(z, labels, torch.arange(80) >= 60, epochs=100, quiet=True)
    assert torch.equal(torch.get_rng_state(), before)
    assert importance.shape == (2, 6)
    assert importance.abs().argmax(1).tolist() == [3, 3]
    assert right.float().mean() > 0.9
    again, _ = fit_probe(z, labels, torch.arange(80) >= 60, epochs=100, quiet=True)
    assert torch.equal(importance, again)


def test_the_probe_tells_functions_apart():
    model = mechheads.load("mini", quiet=True)
    lexicon = mechheads.lexicon(model)
    sets = [
        question_files.questions(name, lexicon, n=24, seed=0)[0]
        for name in ("retrieval", "math_calculation")
    ]
    found = probe_functions(model, sets, epochs=60, max_tokens=4, quiet=True)
    assert found.functions == ("Retrieval", "Math Calculation")
    assert found.chance == pytest.approx(0.5)
    assert found.n == 12
    assert found.accuracy > 0.8
    assert len(found.ranking("Retrieval")) == 32
    frame: Any = found.frame()
    assert len(frame) == 64
    assert frame.groupby("function")["before_elbow"].sum().to_dict() == found.elbows
    with pytest.raises(MechheadsError, match="needs two or more"):
        probe_functions(model, sets[:1], quiet=True)


def test_features_are_z_where_the_answer_is_said(tiny):
    found = features(tiny, ["Then Mary gave"] * 2, [" John Tom", ""])
    tokens = tiny.to_tokens("Then Mary gave John Tom")
    _, cache = tiny.run_with_cache(tokens)
    z = torch.cat([cache[f"blocks.{i}.attn.hook_z"][0] for i in range(2)], dim=1)
    torch.testing.assert_close(found[0], z[-3:-1].mean(0))
    torch.testing.assert_close(found[1], z[-3])


def test_features_are_of_the_five_least_likely_tokens(tiny):
    prompt, said = "Then Mary gave", " John Tom Anna James Mary Tom John"
    tokens = tiny.to_tokens(prompt + said)
    logits, cache = tiny.run_with_cache(tokens)
    likely = logits[0, :-1].log_softmax(-1)[range(tokens.shape[1] - 1), tokens[0, 1:]][-7:]
    chosen = tokens.shape[1] - 8 + likely.topk(5, largest=False).indices
    z = torch.cat([cache[f"blocks.{i}.attn.hook_z"][0] for i in range(2)], dim=1)
    torch.testing.assert_close(features(tiny, [prompt], [said])[0], z[chosen].mean(0))


def test_no_group_ranks_and_is_answered(tiny):
    """Groups of three, shared by both functions."""
    sets = [
        Questions(
            name, tuple(Question(f"{name} {i}", ("x",), name, f"g{i // 3}") for i in range(n))
        )
        for name, n in (("one", 30), ("two", 18))
    ]
    parts = split_questions(tiny, sets, n=8, rank=8, max_tokens=2)
    ranked, asked = _groups(parts.ranked), _groups(parts.asked)
    assert ranked
    assert asked
    assert not ranked & asked
    assert all(4 <= len(part) <= 8 for part in (*parts.ranked, *parts.asked))
    train, test = zip(*split_sets(sets, [22, 13]), strict=True)
    for part, (one, two) in zip(sets, zip(train, test, strict=True), strict=True):
        assert sorted(one + two) == list(range(len(part)))
    assert not _groups(map(Questions.only, sets, train)) & _groups(map(Questions.only, sets, test))


def test_questions_that_do_not_fit_are_counted(tiny):
    long = "Then " * tiny.cfg.n_ctx
    sets = [
        Questions("some", tuple(Question(f"Then {i}", ("x",), "some") for i in range(9))),
        Questions("few", tuple(Question(f"{long}{i}", ("x",), "few") for i in range(9))),
    ]
    parts = split_questions(tiny, sets, n=4, rank=4, max_tokens=2)
    assert [part.name for part in parts.asked] == ["some"]
    assert (parts.too_long, parts.left_out) == (9, {"few": 0})
    assert "9 questions are too long" in parts.missing
    with pytest.raises(MechheadsError, match="no function has 8 questions"):
        split_questions(tiny, sets[1:], n=4, rank=4, max_tokens=2)


def test_questions_of_built_in_tasks_share_no_group():
    model = mechheads.load("mini", quiet=True)
    names = ["retrieval", "math_calculation", "inference"]
    parts = make_questions(model, names, 12, 12, 0, "test", 8)
    assert not _groups(parts.ranked) & _groups(parts.asked)
    for part in (*parts.ranked, *parts.asked):
        assert part.prompts is not None
        assert [q.prompt for q in part.items] == [pair.clean for pair in part.prompts.pairs]


def test_questions_from_files(tmp_path):
    file = tmp_path / "q.jsonl"
    rows = [
        {"question": "Who?", "answer": "Ann", "context": "Ann came.", "function": "Retrieval"},
        {"question": "2+2?", "answer": ["4", "four"]},
    ]
    file.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    first, second = question_files.from_file(file)
    assert first == Question("Ann came.\n\nQuestion: Who?\nAnswer:", ("Ann",), "Retrieval", "Who?")
    assert second == Question("Question: 2+2?\nAnswer:", ("4", "four"), "q", "2+2?")
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
            question_files.from_file(file)
    with pytest.raises(MechheadsError, match="No question file"):
        question_files.from_file(tmp_path / "missing.jsonl")


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
    report = (folder / "report.html").read_text()
    assert "chrF" in report
    assert "95 % intervals over questions" in report
    headline = json.loads((folder / "result.json").read_text())["headline"]
    assert headline["labels"] == {"exact": "exact match", "chrf": "chrF"}
    assert (headline["too_long"], headline["left_out"]) == (0, {})
    lost = headline["parts"]["Retrieval"]
    assert lost["top_loses_more"] == pytest.approx(
        lost["lost_without_top"] - lost["lost_without_random"]
    )
    assert "hierarchy: difference, low" in headline
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
        draws=0,
        k="elbow",
        max_tokens=2,
        metrics="composite",
        out=str(tmp_path / "runs"),
        quiet=True,
    )
    (folder,) = (tmp_path / "runs").iterdir()
    table: Any = pd.read_csv(folder / "masking.csv")
    assert set(table["function"]) == {"Copy", "Sum"}
    probe: Any = pd.read_csv(folder / "probe.csv")
    elbows = probe.groupby("function")["before_elbow"].sum()
    tops = table[table["selection"] == "top"].set_index("function")["k"]
    assert elbows.to_dict() == tops.to_dict()
    headline = json.loads((folder / "result.json").read_text())["headline"]
    assert headline["probe_low"] < headline["probe_accuracy"] + 1e-9
    assert headline["labels"]["composite"].startswith("composite accuracy")
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
        ({"metrics": "exact,exact"}, "--metrics names one twice"),
        ({"metrics": "comet", "comet_command": "no-such-program"}, "unbabel-comet"),
        ({"k": "nan%"}, "--k takes"),
        ({"k": "elbow"}, "what --method probe finds"),
        ({"k": "elbow", "method": "probe", "matrix": True}, "give --matrix-k"),
        ({"matrix_k": "2"}, "--matrix-k belongs to --matrix"),
        ({"matrix": True, "matrix_k": "17"}, "--matrix-k 17 leaves"),
        ({"matrix": True, "matrix_k": "2,4"}, "--matrix-k takes one"),
        ({"matrix": True, "matrix_k": "x"}, "--matrix-k takes"),
        ({"k": "20", "draws": 0, "matrix": True}, "--matrix-k 20 leaves"),
        ({"updates": "3"}, "method patch has no such option"),
        ({"updates": "3", "method": "probe"}, "method probe has no such option"),
        ({"tasks": "retrieval", "method": "probe"}, "needs two or more"),
        ({"tasks": "retrieval,retrieval"}, "twice"),
    ],
)
def test_wrong_input_is_named_and_writes_nothing(wrong, words, tmp_path):
    given: dict[str, Any] = {"tasks": "retrieval", "n": 4, "rank": 4, "max_tokens": 2} | wrong
    with pytest.raises(MechheadsError, match=words):
        mask(**given, out=str(tmp_path), quiet=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("method", METHODS)
def test_every_method_ranks(method, tmp_path):
    owned: dict[str, Any] = {"gating": {"updates": "2", "seeds": "1"}, "ig": {"steps": "2"}}
    mask(
        tasks="retrieval",
        method=method,
        signed=True,
        n=4,
        rank=4,
        draws=1,
        k="1",
        max_tokens=2,
        out=str(tmp_path),
        quiet=True,
        **owned.get(method, {}),
    )
    (folder,) = tmp_path.iterdir()
    assert len(pd.read_csv(folder / "ranking.csv")) == 32


@pytest.mark.shared
def test_cogqa_runs_as_it_is(shared, tmp_path):
    file = shared / "data" / "cogqa" / "test.json"
    if not file.is_file():
        pytest.skip("CogQA is not in ../shared")
    mask(
        tasks=str(file),
        model=str(shared / "models" / "tinyllamas-stories15M"),
        method="probe",
        n=4,
        rank=6,
        draws=1,
        k="4",
        max_tokens=4,
        out=str(tmp_path),
        quiet=True,
    )
    (folder,) = tmp_path.iterdir()
    headline = json.loads((folder / "result.json").read_text())["headline"]
    functions = {*pd.read_csv(folder / "masking.csv")["function"], *headline["left_out"]}
    assert functions == {*question_files.LOW_ORDER, *question_files.HIGH_ORDER}
    assert headline["too_long"] > 0


@pytest.mark.shared
def test_cogqa_is_split_by_main_question(shared, tinystories):
    file = shared / "data" / "cogqa" / "test.json"
    if not file.is_file():
        pytest.skip("CogQA is not in ../shared")
    parts = make_questions(tinystories, [str(file)], 16, 16, 0, "test", 32)
    assert not _groups(parts.ranked) & _groups(parts.asked)
    assert parts.too_long > 0
    assert min(map(len, parts.ranked)) >= 4
    assert len(parts.asked) + len(parts.left_out) == 8


def _groups(sets: Iterable[Questions]) -> set[str]:
    return {item.group for part in sets for item in part.items}


def _questions(name: str) -> Questions:
    items = tuple(
        Question(f"Then {a} gave", ("Mary",), name) for a in ("Tom", "Anna", "James", "John")
    )
    return Questions(name, items)
