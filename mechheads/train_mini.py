"""Verb `train_mini`: how the embedded model was made."""

from typing import TYPE_CHECKING

from mechheads.cli.parse import run

if TYPE_CHECKING:
    from mechheads.training.data import Lessons


def train_mini(
    *,
    out: str = "runs/mini",
    steps: int = 4500,
    last: int = 800,
    layers: int = 4,
    heads: int = 8,
    width: int = 128,
    seed: int = 0,
    workers: int = 2,
    stop_after: int | None = None,
    quiet: bool = False,
) -> None:
    """Train the embedded model from scratch on the training split of the eleven tasks.

    Run it again to go on where it was stopped. The folder becomes a model's directory; below it,
    training/ holds a report with the curves, the log and the checkpoint.

    Args:
        out: the folder for the model
        steps: optimizer steps, the last fifth of them with attention dropout
        last: steps after these, without dropout
        layers: layers
        heads: heads per layer
        width: width of the residual stream
        seed: of the weights and the prompts
        workers: processes that share the rows of a step, one CPU core each
        stop_after: stop at this step, to go on later
        quiet: no progress bar
    """
    from dataclasses import asdict
    from functools import partial
    from pathlib import Path

    from mechheads.prompts.lexicon import tokenizer_lexicon
    from mechheads.training.pretraining import Recipe, build_tokenizer, train
    from mechheads.training.report import accuracy_panels, write_curves
    from tasks.curriculum import held_out_pairs, texts

    tokenizer = build_tokenizer(texts())
    recipe = Recipe(layers, heads, width, steps=steps, last=last, workers=workers, seed=seed)
    folder = Path(out).expanduser()
    train(
        partial(course, seed),
        held_out_pairs(tokenizer_lexicon(tokenizer, "mini"), 100),
        tokenizer,
        recipe,
        folder,
        stop_after=stop_after,
        quiet=quiet,
    )
    training = folder / "training"
    panels = accuracy_panels(training / "log.csv")
    page = write_curves(training, "mini, trained from scratch", asdict(recipe), panels)
    print(f"model: {folder}\nreport: {page}")


def course(seed: int, worker: int, workers: int) -> "Lessons":
    """What one of the workers trains on."""
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


if __name__ == "__main__":
    run(train_mini)
