"""Verb `train_mini`: how the embedded model was made."""

from .cli import run


def train_mini(
    *,
    out: str = "runs/mini",
    steps: int = 4500,
    layers: int = 4,
    heads: int = 8,
    width: int = 128,
    seed: int = 0,
    threads: int = 2,
    stop_after: int | None = None,
    quiet: bool = False,
) -> None:
    """Train the embedded model from scratch on the training split of the eleven tasks.

    Run it again to go on where it was stopped.

    Args:
        out: the folder for the model, its checkpoint and its log
        steps: optimizer steps
        layers: layers
        heads: heads per layer
        width: width of the residual stream
        seed: of the weights and the prompts
        threads: CPU threads
        stop_after: stop at this step, to go on later
        quiet: no progress bar
    """
    from pathlib import Path

    import torch

    from tasks.curriculum import held_out_pairs, shares, texts

    from .models import tokenizer_lexicon
    from .pretraining import Recipe, build_tokenizer, train

    torch.set_num_threads(threads)
    tokenizer = build_tokenizer(texts())
    lexicon = tokenizer_lexicon(tokenizer, "mini")
    recipe = Recipe(layers=layers, heads=heads, width=width, steps=steps, seed=seed)
    train(
        shares(lexicon),
        held_out_pairs(lexicon, 100),
        tokenizer,
        recipe,
        Path(out),
        stop_after=stop_after,
        quiet=quiet,
    )
    print(out)


if __name__ == "__main__":
    run(train_mini)
