"""Verb `sparsify`: a model learns to do the same with few attention edges."""

from mechheads.cli.parse import run


def sparsify(
    *,
    model: str = "mini",
    out: str = "runs/sparse",
    text: str = "tasks",
    length: int = 128,
    steps: int = 1300,
    batch: int | None = None,
    slack: float = 0.05,
    density: float = 0.004,
    rate: float = 6e-4,
    settle: float = 0.4,
    decay: float = 0.0,
    distill: float = 1.0,
    lora: int = 0,
    start: str | None = None,
    seed: int = 0,
    stop_after: int | None = None,
    revision: str | None = None,
    device: str | None = None,
    threads: int | None = None,
    quiet: bool = False,
) -> None:
    """Post-train a model so that it uses few attention edges and loses next to nothing.

    Run it again to go on where it was stopped. The result is a model's directory; below it,
    training/ holds a report with the curves, the log and the checkpoint.

    Args:
        model: mini, smollm2, a model directory, a .gguf file or a hub id
        out: the folder for the sparse model
        text: a text file, a folder of .txt and .md files, or `tasks`: the built-in tasks' prompts
        length: tokens in a sequence of text
        steps: optimizer steps
        batch: prompts or sequences in a step; default: 128 prompts, 8 sequences
        slack: how much the loss may rise above the dense model's, in nats
        density: share of the causal edges below which no more are asked to close
        rate: learning rate of the weights
        settle: share of the steps, at the end, in which gates are deterministic and rates fall
        decay: weight decay of the matrices in the blocks
        distill: weight of the divergence from the dense model's predictions; 0 for none
        lora: rank of low-rank adapters, for models too large to train whole; 0 for all weights
        start: a sparse model made of the same dense one before, to go on from
        seed: of the data and the gates
        stop_after: stop at this step, to go on later
        revision: branch, tag or commit of a hub model
        device: cpu, cuda, cuda:1, mps; default: the best there is
        threads: CPU threads; default: torch's choice
        quiet: no notices and no progress bar
    """
    from pathlib import Path

    from mechheads.errors import MechheadsError
    from mechheads.models import locate
    from mechheads.progress import say
    from mechheads.runs.files import prepare

    # What can be wrong is looked at before torch is imported.
    if threads is not None and threads < 1:
        raise MechheadsError(f"--threads takes 1 or more, got {threads}.")
    place = None if text == "tasks" else Path(text).expanduser()
    if place:
        from mechheads.training.texts import text_files

        text_files(place)
    if locate.is_sparse(locate.find(model, revision, quiet=quiet)):
        raise MechheadsError(f"{model} is sparse already. Give the dense model it was made of.")
    folder = prepare(Path(out).expanduser())
    say(f"Loading {model} ...", quiet)
    import torch

    from mechheads.models.load import load_original
    from mechheads.prompts.lexicon import tokenizer_lexicon
    from mechheads.training import sparsification
    from mechheads.training.data import task_course, text_course
    from mechheads.training.report import write_curves
    from tasks.curriculum import held_out_pairs, shares

    settings = sparsification.Settings(
        model=model,
        text=text,
        length=length,
        steps=steps,
        batch=batch or (8 if place else 128),
        slack=slack,
        density=density,
        rate=rate,
        settle=settle,
        decay=decay,
        distill=distill,
        lora=lora,
        seed=seed,
        start=start,
    )
    sparsification.check(settings)
    if threads is not None:
        torch.set_num_threads(threads)
    original = load_original(model, revision=revision, device=device, quiet=quiet)
    bos = original.prepend_bos
    if place and length > original.n_ctx:
        raise MechheadsError(
            f"{model} takes up to {original.n_ctx} tokens, --length is {length}. Give less."
        )
    if place:
        course = text_course(original.tokenizer, place, length, settings.batch, seed, bos)
    else:
        lexicon = tokenizer_lexicon(original.tokenizer, model)
        portions, tests = shares(lexicon, settings.batch), held_out_pairs(lexicon, 16)
        course = task_course(original.tokenizer, portions, tests, seed, bos)
    found = sparsification.sparsify(
        original, course, settings, folder, stop_after=stop_after, quiet=quiet
    )
    page = write_curves(folder / "training", f"{model} made sparse", settings.__dict__)
    print(
        f"{found.density:.2%} of the attention edges are left, in {found.live} of "
        f"{original.n_layers * original.n_heads} heads; the loss on held-out rows is "
        f"{found.gap:+.4f} nats from the dense model's."
    )
    print(f"model: {folder}\nreport: {page}")


if __name__ == "__main__":
    run(sparsify)
