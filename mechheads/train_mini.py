"""Verb `train_mini`: how the embedded model was made."""

from .cli import run


def train_mini(
    *,
    out: str = "runs/mini",
    steps: int = 5000,
    layers: int = 4,
    heads: int = 8,
    width: int = 128,
    seed: int = 0,
    threads: int = 2,
    stop_after: int | None = None,
    quiet: bool = False,
) -> None:
    """Train the embedded model from scratch on the training split of the eleven tasks.

    Run it again to go on where it was stopped. The folder becomes a model's directory; below it,
    training/ holds a report with the curves, the log and the checkpoint.

    Args:
        out: the folder for the model
        steps: optimizer steps
        layers: layers
        heads: heads per layer
        width: width of the residual stream
        seed: of the weights and the prompts
        threads: CPU threads
        stop_after: stop at this step, to go on later
        quiet: no progress bar
    """
    from dataclasses import asdict
    from pathlib import Path

    import torch

    from tasks.curriculum import echoed_words, held_out_pairs, shares, texts

    from .curves import accuracy_panels, write_curves
    from .models import tokenizer_lexicon
    from .pretraining import Recipe, build_tokenizer, train

    torch.set_num_threads(threads)
    tokenizer = build_tokenizer(texts())
    lexicon = tokenizer_lexicon(tokenizer, "mini")
    recipe = Recipe(layers=layers, heads=heads, width=width, steps=steps, seed=seed)
    folder = Path(out).expanduser()
    train(
        shares(lexicon),
        echoed_words(lexicon),
        held_out_pairs(lexicon, 100),
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


if __name__ == "__main__":
    run(train_mini)
