"""Command `discover`: find the heads that do a task."""

from typing import Literal

from mechheads.cli.main import run
from mechheads.jobs.run import Finished, run_command
from mechheads.models.options import ModelOptions


def discover(
    *,
    task: str = "ioi",
    model: str = "mini",
    method: str = "patch",
    metric: str | None = None,
    n: int | None = None,
    test: int | None = None,
    seed: int = 0,
    split: str = "test",
    threshold: float = 0.9,
    k: int | None = None,
    search: Literal["top", "prune", "greedy"] = "top",
    signed: bool = False,
    direction: Literal["noising", "denoising"] = "noising",
    replacement: Literal["corrupt", "zero", "mean", "position_mean"] = "corrupt",
    draws: int = 10,
    out: str = "runs",
    loading: ModelOptions = ModelOptions(),
    budget: int | None = None,
    quiet: bool = False,
    json: bool = False,
    **options: str,
) -> Finished:
    """Find the heads that do a task: rank them, keep the first, measure what they explain, report.

    Some prompts rank the heads, others judge the ranking. A run folder is written below --out; the
    last line is its report.

    Args:
        task: a built-in task (below) or a .jsonl file with clean, corrupt, answer and wrong
        model: mini, mini-sparse, smollm2, a model directory, a .gguf file or a hub id
        method: patch, attribution, ig, hybrid, path, direct or gating (below)
        metric: logit_diff, logit_diff_max, prob_diff, logprob, accuracy, top1; default: the task's
        n: prompts that rank the heads; default: 32, or half of a task file
        test: prompts that judge; default: 32, or the other half of a task file
        seed: of the prompts and the random rankings
        split: test, train (what our embedded models have seen) or all
        threshold: share of the effect that the circuit must explain
        k: keep so many heads, instead of as many as the threshold takes
        search: top (the first of the ranking), prune or greedy (fewer heads, slower)
        signed: rank by the signed effect, not by its size; misleads where heads are dead
        direction: noising (break the clean run) or denoising (mend the corrupted one)
        replacement: corrupt, zero, mean or position_mean, of the heads that are not kept
        draws: random rankings to compare with
        out: the folder that holds run folders
        loading: how the models are loaded
        budget: tokens per pass, which bounds memory; default: what suits the device
        quiet: no notices and no progress bar
        json: print one JSON object (headline, warnings, folder) instead of text
        options: the task's and the method's own options
    """
    return run_command("discover", locals())


if __name__ == "__main__":
    run(discover)
