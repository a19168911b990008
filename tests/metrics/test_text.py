"""Metrics of text: every one by hand, and COMET by a program."""

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from fake_comet import write_comet_score

from mechheads.errors import MechheadsError
from mechheads.metrics import text as quality


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


def test_comet_runs_the_program_that_is_named(tmp_path):
    comet_score = write_comet_score(tmp_path)
    judged = quality.find("comet", str(comet_score)).judge(
        ["one\ntwo", "", "x"], [("a",), ("b",), ("c",)], ["one two", "", "y"]
    )
    assert judged == [1.0, 1.0, 0.0]
    with pytest.raises(MechheadsError, match=r"version 2 or newer.*--comet-command \"/opt"):
        quality.find("comet", str(comet_score / "missing"))
    with pytest.raises(MechheadsError, match="is not a valid command"):
        quality.find("comet", "'comet-score")
    with pytest.raises(MechheadsError, match="Unknown text metric"):
        quality.find("chr")
    comet_score.write_text(f"#!{sys.executable}\nprint('hello')\n", encoding="utf-8")
    with pytest.raises(MechheadsError, match="0 scores for 1 answers"):
        quality.find("comet", str(comet_score)).judge(["a"], [("a",)], ["a"])


def test_a_folder_in_the_working_directory_is_not_taken_for_the_embedder(tmp_path, monkeypatch):
    """sentence-transformers runs the code of a folder that has the name of a model."""
    opened = []

    def embedder(name, **_):
        opened.append(Path(name))
        return Embedder()

    def download(name, **given):
        assert given == {"local_files_only": True}
        return str(tmp_path / "cache" / name)

    installed = {
        "sentence_transformers": SimpleNamespace(SentenceTransformer=embedder),
        "huggingface_hub": SimpleNamespace(snapshot_download=download),
    }
    monkeypatch.setattr(quality, "import_module", installed.get)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "all-MiniLM-L6-v2").mkdir()
    assert quality.find_embedder() is not None
    assert opened == [tmp_path / "cache" / "sentence-transformers" / "all-MiniLM-L6-v2"]
