"""Command `mask`: what does a model answer without its top heads?"""

from typing import Literal

from mechheads.cli.main import run
from mechheads.jobs.run import Finished, run_command
from mechheads.models.options import ModelOptions


def mask(
    *,
    tasks: str = "retrieval,knowledge_recall,math_calculation,inference",
    model: str = "mini",
    method: str = "patch",
    signed: bool = False,
    k: str | None = None,
    n: int = 32,
    rank: int = 32,
    draws: int = 5,
    seed: int = 0,
    split: str = "test",
    positions: Literal["last", "all"] = "last",
    scale: float = 0.0,
    metrics: str = "exact,chrf",
    comet_command: str = "comet-score",
    max_tokens: int = 32,
    matrix: bool = False,
    matrix_k: str | None = None,
    out: str = "runs",
    loading: ModelOptions = ModelOptions(),
    budget: int | None = None,
    quiet: bool = False,
    json: bool = False,
    **options: str,
) -> Finished:
    """Mask the top heads of a ranking, or as many at random, and judge what the model then says.

    Some questions rank the heads, others, about other things, are answered. A run folder is written
    below --out; the last line is its report.

    Args:
        tasks: a comma list of built-in tasks (below) or .jsonl files with question and answer
        model: mini, mini-sparse, smollm2, a model directory, a .gguf file or a hub id
        method: patch, attribution, ig, hybrid, path, direct, gating (see discover), or probe: a
            classifier that tells the tasks' functions apart
        signed: rank by the signed score, not by its size
        k: heads to mask, numbers or shares (16,32,10%); with --method probe also elbow, as
            many as the probe finds for each function; without it the four largest powers of two
            up to a quarter of the heads
        n: questions to answer, of each task or function
        rank: questions that rank the heads, of each
        draws: sets of random heads for every k, none of them among the top ones; 0 for none
        seed: of the questions and the random heads
        split: test, train (what our embedded models have seen) or all
        positions: mask at the last position of every pass (the prompt is read by all heads), or all
        scale: what a masked head's output is multiplied by
        metrics: exact, composite, chrf, bleu, rouge1, comet, in a comma list
        comet_command: the comet-score program of unbabel-comet, for --metrics comet
        max_tokens: longest answer
        matrix: also mask each function's heads and test every other function
        matrix_k: heads to mask for that, one number or share; default: the middle one of --k
        out: the folder that holds run folders
        loading: how the models are loaded
        budget: tokens per pass, which bounds memory; default: what suits the device
        quiet: no notices and no progress bar
        json: print one JSON object (headline, warnings, folder) instead of text
        options: the method's own options
    """
    return run_command("mask", locals())


if __name__ == "__main__":
    run(mask)
