"""The job of `train_mini`: the embedded model, from random weights to a model directory."""

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from mechheads.options import check_least, read_path
from mechheads.packages import check_not_hidden
from mechheads.runs.files import alone, prepare, recover

from .run import Finished, print_json

if TYPE_CHECKING:
    from mechheads.training.data import Batches

# Passed to `Recipe` unchanged.
RECIPE = "layers heads width steps last workers seed".split()


def run_training(given: Mapping[str, Any]) -> Finished:
    """Train, and report the curves."""
    check_not_hidden()
    check_least("--stop-after", given["stop_after"], 1)
    from mechheads.prompts.lexicon import tokenizer_lexicon
    from mechheads.training.pretraining import Recipe, build_tokenizer, train
    from mechheads.training.report import accuracy_panels, last_row, write_curves
    from tasks.curriculum import held_out_pairs, texts

    tokenizer = build_tokenizer(texts())
    recipe = Recipe(**{name: given[name] for name in RECIPE})
    folder = read_path(given["out"], "--out")
    with alone(prepare(folder)):
        recover(folder / "model")
        train(
            partial(worker_batches, given["seed"]),
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
    headline = last_row(training / "log.csv")
    accuracies = dict(list(headline.items())[3:])
    hardest = min(accuracies, key=accuracies.__getitem__)
    sentence = (
        f"Held-out accuracy after {headline['step']:,.0f} steps: "
        f"{sum(accuracies.values()) / len(accuracies):.0%} on average over {len(accuracies)} "
        f"tasks, lowest on {hardest} ({accuracies[hardest]:.0%})."
    )
    if given["json"]:
        print_json("train_mini", headline, [], folder, sentence)
    else:
        print(f"{sentence}\nmodel: {folder}\nreport: {page}")
    return Finished(headline, folder)


def worker_batches(seed: int, worker: int, workers: int) -> "Batches":
    """The training data of one worker."""
    from mechheads.prompts.lexicon import tokenizer_lexicon
    from mechheads.training.data import task_batches
    from mechheads.training.pretraining import Recipe, build_tokenizer
    from tasks.curriculum import COUNTS, echoed_words, shares, texts

    tokenizer = build_tokenizer(texts())
    lexicon = tokenizer_lexicon(tokenizer, "mini")
    return task_batches(
        tokenizer,
        shares(lexicon, sum(COUNTS.values()) // workers),
        f"{seed}/{worker}",
        repeated=echoed_words(lexicon),
        n_repeated=24 // workers,
        n_first=1000,
        context=Recipe().context,
    )
