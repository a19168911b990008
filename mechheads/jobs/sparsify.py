"""The job of `sparsify`: post-train a model on text or on the tasks, and report the curves."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mechheads.errors import MechheadsError
from mechheads.models import locate
from mechheads.options import check_least, read_path
from mechheads.packages import check_not_hidden, no_garbage_collection
from mechheads.progress import say
from mechheads.runs.files import alone, prepare, recover

from .run import Finished, print_json

if TYPE_CHECKING:
    from mechheads.models.huggingface import Original
    from mechheads.training.data import TrainingData
    from mechheads.training.sparsification import Settings

# Passed to `sparsification.Settings` unchanged.
SETTINGS = "model text length steps slack density rate settle decay distill lora seed start".split()


def run_sparsify(given: Mapping[str, Any]) -> Finished:
    """Check, load, train and report."""
    check_not_hidden()
    model, threads, quiet = (given[name] for name in ("model", "threads", "quiet"))
    check_least("--threads", threads, 1)
    check_least("--stop-after", given["stop_after"], 1)
    place = None if given["text"] == "tasks" else read_path(given["text"], "--text")
    if place:
        from mechheads.training.texts import text_files

        text_files(place)
    if locate.is_sparse(locate.find(model, given["revision"], quiet=quiet)):
        raise MechheadsError(f"{model} is already sparse. Give the dense model it was made from.")
    folder = prepare(read_path(given["out"], "--out"))
    say(f"Loading {model} ...", quiet)
    with no_garbage_collection():
        import torch

        from mechheads.models.load import load_original
        from mechheads.training import sparsification
        from mechheads.training.report import write_curves

    batch = given["batch"] or (8 if place else 128)
    settings = sparsification.Settings(batch=batch, **{name: given[name] for name in SETTINGS})
    sparsification.check(settings)
    if threads is not None:
        torch.set_num_threads(threads)
    original = load_original(model, revision=given["revision"], device=given["device"], quiet=quiet)
    data = training_data(original, place, settings)
    with alone(folder):
        recover(folder / "model")
        found = sparsification.sparsify(
            original,
            data,
            settings,
            folder,
            stop_after=given["stop_after"],
            quiet=quiet,
        )
    page = write_curves(folder / "training", f"{model}, sparsified", settings.__dict__)
    heads = original.n_layers * original.n_heads
    sentence = (
        f"{found.density:.2%} of the attention edges are left, in {found.live} of {heads} heads; "
        f"the loss on held-out rows differs from the dense model's by {found.gap:+.4f} nats."
    )
    if given["json"]:
        headline = {"density": found.density, "live_heads": found.live, "gap_nats": found.gap}
        print_json("sparsify", headline, [], folder, sentence)
    else:
        print(f"{sentence}\nmodel: {folder}\nreport: {page}")
    return Finished(found, folder)


def training_data(original: "Original", place: Path | None, settings: "Settings") -> "TrainingData":
    """What the model is trained on: text, or the prompts of the tasks."""
    from mechheads.prompts.lexicon import tokenizer_lexicon
    from mechheads.training.data import task_data, text_data
    from tasks.curriculum import held_out_pairs, shares

    tokenizer, bos, seed = original.tokenizer, original.prepend_bos, settings.seed
    if place is None:
        lexicon = tokenizer_lexicon(tokenizer, settings.model)
        portions, tests = shares(lexicon, settings.batch), held_out_pairs(lexicon, 16)
        return task_data(tokenizer, portions, tests, seed, bos)
    if settings.length > original.n_ctx:
        raise MechheadsError(
            f"{settings.model} takes up to {original.n_ctx} tokens, but --length is "
            f"{settings.length}. Use a smaller --length."
        )
    return text_data(tokenizer, place, settings.length, settings.batch, seed, bos)
