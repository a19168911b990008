"""The job of `train_mini`: the embedded model, from random weights to a model directory."""

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from mechheads.options import read_path
from mechheads.packages import check_not_hidden
from mechheads.runs.files import alone, prepare, recover

from .run import Finished

if TYPE_CHECKING:
    from mechheads.training.data import Lessons

# Passed to `Recipe` unchanged.
RECIPE = "layers heads width steps last workers seed".split()


def run_training(given: Mapping[str, Any]) -> Finished:
    """Train, and report the curves."""
    check_not_hidden()
    from mechheads.prompts.lexicon import tokenizer_lexicon
    from mechheads.training.pretraining import Recipe, build_tokenizer, train
    from mechheads.training.report import accuracy_panels, write_curves
    from tasks.curriculum import held_out_pairs, texts

    tokenizer = build_tokenizer(texts())
    recipe = Recipe(**{name: given[name] for name in RECIPE})
    folder = read_path(given["out"], "--out")
    with alone(prepare(folder)):
        recover(folder / "model")
        train(
            partial(course, given["seed"]),
            held_out_pairs(tokenizer_lexicon(tokenizer, "mini"), 100),
            tokenizer,
            recipe,
            folder,
            stop_after=given["stop_after"],
            quiet=given["quiet"],
        )
    training = folder / "training"
    panels = accuracy_panels(training / "log.csv")
    page = write_curves(training, "mini, trained from scratch", asdict(recipe), panels)
    print(f"model: {folder}\nreport: {page}")
    return Finished(recipe, folder)


def course(seed: int, worker: int, workers: int) -> "Lessons":
    """The training data of one worker."""
    from mechheads.prompts.lexicon import tokenizer_lexicon
    from mechheads.training.data import task_lessons
    from mechheads.training.pretraining import Recipe, build_tokenizer
    from tasks.curriculum import COUNTS, echoed_words, shares, texts

    tokenizer = build_tokenizer(texts())
    lexicon = tokenizer_lexicon(tokenizer, "mini")
    return task_lessons(
        tokenizer,
        shares(lexicon, sum(COUNTS.values()) // workers),
        f"{seed}/{worker}",
        repeated=echoed_words(lexicon),
        n_repeated=24 // workers,
        n_first=1000,
        context=Recipe().context,
    )
