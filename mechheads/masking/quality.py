"""How good an answer is: every metric takes what was said, what is right, and what the whole model
said, and gives a number per answer, from 0 (bad) to 1 unless it says otherwise.
"""

import re
import shlex
import string
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path

from ..errors import MechheadsError, unknown

Texts = Sequence[str]
Golds = Sequence[Sequence[str]]


@dataclass(frozen=True)
class Quality:
    """A metric: `judge(said, gold, whole)`. Accuracies are 0 or 1, others text qualities."""

    name: str
    label: str
    judge: Callable[[Texts, Golds, Texts], list[float]]
    accuracy: bool = False


def normalised(text: str) -> str:
    """Lower case, without articles, punctuation at the ends of words, and needless spaces."""
    words = [word.strip(string.punctuation) for word in text.lower().split()]
    return " ".join(word for word in words if word and word not in ("a", "an", "the"))


def exact(said: Texts, gold: Golds, whole: Texts) -> list[float]:
    """1 where the answer is one of the right ones, both normalised."""
    return [
        float(normalised(text) in {normalised(right) for right in answers})
        for text, answers in zip(said, gold, strict=True)
    ]


def chrf(said: Texts, gold: Golds, whole: Texts) -> list[float]:
    """Characters that the answer has in common with a right one (chrF2), from 0 to 1."""
    from sacrebleu.metrics.chrf import CHRF

    metric = CHRF()
    return [
        metric.sentence_score(text.strip(), list(answers)).score / 100
        for text, answers in zip(said, gold, strict=True)
    ]


def bleu(said: Texts, gold: Golds, whole: Texts) -> list[float]:
    """BLEU against a right answer, from 0 to 1."""
    return [_bleu(text, answers) for text, answers in zip(said, gold, strict=True)]


def rouge1(said: Texts, gold: Golds, whole: Texts) -> list[float]:
    """ROUGE-1: words in common with the best right answer (F1)."""
    return [
        max(_rouge1(text, right) for right in answers)
        for text, answers in zip(said, gold, strict=True)
    ]


def composite(said: Texts, gold: Golds, whole: Texts) -> list[float]:
    """The paper's accuracy: 1 where any of its alternatives holds.

    BLEU with what the whole model said above 0.8, ROUGE-1 with a right answer above 0.6, or cosine
    of sentence embeddings with a right answer above 0.6; the last only where sentence-transformers
    and a model are installed.
    """
    similar = similarities(said, gold) or [0.0] * len(said)
    return [
        float(_bleu(text, [before]) > 0.8 or rouge > 0.6 or cosine > 0.6)
        for text, before, rouge, cosine in zip(
            said, whole, rouge1(said, gold, whole), similar, strict=True
        )
    ]


def similarities(said: Texts, gold: Golds) -> list[float] | None:
    """Cosine with the most similar right answer; None where no embedding model is installed."""
    embedder = _embedder()
    if embedder is None:
        return None
    texts = sorted({*said, *(right for answers in gold for right in answers)})
    vectors = dict(zip(texts, embedder.encode(texts, normalize_embeddings=True), strict=True))
    return [
        max(float(vectors[text] @ vectors[right]) for right in answers)
        for text, answers in zip(said, gold, strict=True)
    ]


def comet(command: str) -> Quality:
    """COMET by the program of unbabel-comet: answers against what the whole model said."""

    def judge(said: Texts, gold: Golds, whole: Texts) -> list[float]:
        return run_comet(command, [answers[0] for answers in gold], said, whole)

    return Quality("comet", "COMET", judge)


def run_comet(command: str, sources: Texts, said: Texts, references: Texts) -> list[float]:
    """Scores of the segments, as `comet-score` prints them."""
    with tempfile.TemporaryDirectory() as place:
        files = []
        for name, texts in (("src", sources), ("hyp", said), ("ref", references)):
            file = Path(place) / f"{name}.txt"
            # A line is a segment; an empty one would be dropped.
            lines = [" ".join(text.split()) or "." for text in texts]
            file.write_text("\n".join(lines) + "\n", encoding="utf-8")
            files.append(str(file))
        words = [*shlex.split(command), "-s", files[0], "-t", files[1], "-r", files[2]]
        try:
            done = subprocess.run(
                [*words, "--quiet"], capture_output=True, text=True, check=True, timeout=3600
            )
        except FileNotFoundError:
            raise MechheadsError(
                f"--metrics comet needs the program {words[0]!r}, which is not there. Install "
                "unbabel-comet in an environment of its own (its dependencies conflict with ours) "
                "and give its comet-score with --comet-command."
            ) from None
        except (OSError, subprocess.SubprocessError) as error:
            lines = str(getattr(error, "stderr", "") or error).strip().splitlines()
            raise MechheadsError(f"{words[0]} failed: {lines[-1] if lines else error}") from None
    scores = [float(s) for s in re.findall(r"Segment \d+\s+score: (-?[\d.]+)", done.stdout)]
    if len(scores) != len(said):
        raise MechheadsError(
            f"{words[0]} printed {len(scores)} scores for {len(said)} answers. Is it comet-score?"
        )
    return scores


QUALITIES: Mapping[str, Quality] = {
    quality.name: quality
    for quality in (
        Quality("exact", "exact match", exact, accuracy=True),
        Quality("composite", "composite accuracy", composite, accuracy=True),
        Quality("chrf", "chrF", chrf),
        Quality("bleu", "BLEU", bleu),
        Quality("rouge1", "ROUGE-1", rouge1),
    )
}


def find(name: str, comet_command: str = "comet-score") -> Quality:
    """The metric of that name; an error suggests."""
    if name == "comet":
        return comet(comet_command)
    if name not in QUALITIES:
        raise unknown("text metric", name, [*QUALITIES, "comet"])
    return QUALITIES[name]


def _bleu(text: str, references: Sequence[str]) -> float:
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU(effective_order=True)
    return metric.sentence_score(text.strip(), [r.strip() for r in references]).score / 100


def _rouge1(text: str, right: str) -> float:
    return _scorer().score(right, text)["rouge1"].fmeasure


@lru_cache
def _scorer():  # noqa: ANN202
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(["rouge1"], use_stemmer=False)


@lru_cache
def _embedder():  # noqa: ANN202
    try:
        SentenceTransformer = import_module("sentence_transformers").SentenceTransformer
    except ModuleNotFoundError:
        return None
    try:
        return SentenceTransformer("all-MiniLM-L6-v2", local_files_only=True)
    except Exception:  # not downloaded: any of several libraries' errors
        return None
