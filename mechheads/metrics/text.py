"""Metrics of free-form answers.

Every metric takes the answers, the right answers and the full model's answers, and returns a number
per answer, from 0 (bad) to 1 unless stated otherwise.
"""

import re
import shlex
import shutil
import string
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from mechheads.errors import MechheadsError, unknown

Texts = Sequence[str]
Golds = Sequence[Sequence[str]]


@dataclass(frozen=True)
class Quality:
    """A metric: `judge(said, gold, whole)`. Accuracies are 0 or 1; others measure text quality."""

    name: str
    label: str
    judge: Callable[[Texts, Golds, Texts], list[float]]
    accuracy: bool = False


EMBEDDER = "sentence-transformers/all-MiniLM-L6-v2"
ARTICLES = ("a", "an", "the")
_MARKS = re.escape(string.punctuation)
# Punctuation before a word; a sign or decimal point before a digit is part of the number.
_BEFORE = re.compile(rf"^[{_MARKS}]*?(?=[-+]?\.?\d|[^{_MARKS}]|$)")


def normalised(text: str) -> str:
    """Lower-case text without articles, extra spaces and punctuation at the ends of words.

    Articles stay if there is nothing else; signs and decimal points of numbers stay.
    """
    bare = [word.rstrip(string.punctuation) for word in text.lower().split()]
    kept = [word for word in (_BEFORE.sub("", word, count=1) for word in bare) if word]
    return " ".join([word for word in kept if word not in ARTICLES] or kept)


def exact(said: Texts, gold: Golds, whole: Texts) -> list[float]:
    """1 where the answer is a right one, both normalised; an empty answer is never right."""
    return [
        float(normalised(text) in {normalised(right) for right in answers} - {""})
        for text, answers in zip(said, gold, strict=True)
    ]


def chrf(said: Texts, gold: Golds, whole: Texts) -> list[float]:
    """Character overlap of the answer with a right one (chrF2), from 0 to 1."""
    from sacrebleu.metrics.chrf import CHRF

    metric = CHRF()
    return [
        metric.sentence_score(text.strip(), list(answers)).score / 100
        for text, answers in zip(said, gold, strict=True)
    ]


def bleu(said: Texts, gold: Golds, whole: Texts) -> list[float]:
    """BLEU against a right answer, from 0 to 1."""
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU(effective_order=True)
    return [
        metric.sentence_score(text.strip(), [right.strip() for right in answers]).score / 100
        for text, answers in zip(said, gold, strict=True)
    ]


def rouge1(said: Texts, gold: Golds, whole: Texts) -> list[float]:
    """ROUGE-1: word overlap (F1) with the best-matching right answer."""
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(["rouge1"], use_stemmer=False)
    return [
        max(scorer.score(right, text)["rouge1"].fmeasure for right in answers)
        for text, answers in zip(said, gold, strict=True)
    ]


def composite(embedder: Any = None) -> Quality:
    """The paper's accuracy: 1 where any of its criteria holds.

    The answer equals the full model's or has BLEU above 0.8 with it, ROUGE-1 with a right answer is
    above 0.6, or the cosine similarity of sentence embeddings with a right answer is above 0.6.
    Without an embedder the last is left out, and the label says so.
    """

    def judge(said: Texts, gold: Golds, whole: Texts) -> list[float]:
        kept = bleu(said, [[before] for before in whole], whole)
        words = rouge1(said, gold, whole)
        cosines = similarities(embedder, said, gold) if embedder else [0.0] * len(said)
        return [
            float(text.strip() == before.strip() or b > 0.8 or r > 0.6 or cosine > 0.6)
            for text, before, b, r, cosine in zip(said, whole, kept, words, cosines, strict=True)
        ]

    label = f"composite accuracy{'' if embedder else ' (no embeddings)'}"
    return Quality("composite", label, judge, accuracy=True)


def similarities(embedder: Any, said: Texts, gold: Golds) -> list[float]:
    """Cosine similarity with the most similar right answer."""
    texts = sorted({*said, *(right for answers in gold for right in answers)})
    vectors = dict(zip(texts, embedder.encode(texts, normalize_embeddings=True), strict=True))
    return [
        max(float(vectors[text] @ vectors[right]) for right in answers)
        for text, answers in zip(said, gold, strict=True)
    ]


def find_embedder() -> Any:
    """The sentence-embedding model, or None if it or sentence-transformers is not installed."""
    try:
        SentenceTransformer = import_module("sentence_transformers").SentenceTransformer
    except ModuleNotFoundError:
        return None
    try:
        # By its folder in the hub's cache: by name, a folder of that name in the working directory
        # would be taken, and its code run.
        folder = import_module("huggingface_hub").snapshot_download(EMBEDDER, local_files_only=True)
        return SentenceTransformer(
            folder, local_files_only=True, model_kwargs={"use_safetensors": True}
        )
    except Exception:  # not downloaded: several libraries raise their own errors
        return None


def comet(command: str) -> Quality:
    """COMET, by unbabel-comet's program: answers against the full model's answers."""
    program = find_program(command)

    def judge(said: Texts, gold: Golds, whole: Texts) -> list[float]:
        return run_comet(program, [answers[0] for answers in gold], said, whole)

    return Quality("comet", "COMET", judge)


def find_program(command: str) -> list[str]:
    """The words of a command; raises if there is no such program."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise MechheadsError(
            f"--comet-command {command!r} is not a valid command ({error})."
        ) from None
    if not words or shutil.which(words[0]) is None:
        raise MechheadsError(
            f"--metrics comet needs the program {command!r}, which was not found. Install "
            "unbabel-comet, version 2 or newer, in a separate environment (its dependencies "
            "conflict with ours) and name its program: "
            '--comet-command "/opt/comet/bin/comet-score --gpus 0".'
        )
    return words


def run_comet(
    program: Sequence[str], sources: Texts, said: Texts, references: Texts
) -> list[float]:
    """Segment scores as `comet-score` prints them; its model is loaded once per call."""
    with tempfile.TemporaryDirectory() as place:
        files = []
        for name, texts in (("src", sources), ("hyp", said), ("ref", references)):
            file = Path(place) / f"{name}.txt"
            # Each line is a segment; empty lines would be dropped.
            lines = [" ".join(text.split()) or "." for text in texts]
            file.write_text("\n".join(lines) + "\n", encoding="utf-8")
            files.append(str(file))
        words = [*program, "-s", files[0], "-t", files[1], "-r", files[2], "--quiet"]
        try:
            done = subprocess.run(words, capture_output=True, text=True, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            lines = str(getattr(error, "stderr", "") or error).strip().splitlines()
            raise MechheadsError(f"{program[0]} failed: {lines[-1] if lines else error}") from None
    scores = [float(s) for s in re.findall(r"Segment \d+\s+score: (-?[\d.]+)", done.stdout)]
    if len(scores) != len(said):
        raise MechheadsError(
            f"{program[0]} printed {len(scores)} scores for {len(said)} answers. Is it "
            "comet-score from unbabel-comet, version 2 or newer?"
        )
    return scores


QUALITIES: Mapping[str, Quality] = {
    quality.name: quality
    for quality in (
        Quality("exact", "exact match", exact, accuracy=True),
        Quality("chrf", "chrF", chrf),
        Quality("bleu", "BLEU", bleu),
        Quality("rouge1", "ROUGE-1", rouge1),
    )
}
NAMES = (*QUALITIES, "composite", "comet")


def find(name: str, comet_command: str = "comet-score") -> Quality:
    """The metric of that name, ready to use; an unknown name raises an error with suggestions."""
    if name not in NAMES:
        raise unknown("text metric", name, NAMES)
    if name == "comet":
        return comet(comet_command)
    return composite(find_embedder()) if name == "composite" else QUALITIES[name]
