"""Command `compare`: how many heads do two models need?"""

from typing import Literal

from mechheads.cli.main import run
from mechheads.jobs.run import Finished, run_command
from mechheads.models.options import ModelOptions


def compare(
    *,
    standard: str = "mini",
    sparse: str = "mini-sparse",
    tasks: str = "greater_than,ioi,docstring,ioi_long,math",
    method: str = "patch",
    n: int | None = None,
    test: int | None = None,
    seed: int = 0,
    split: str = "test",
    threshold: float = 0.9,
    signed: bool = False,
    replacement: Literal["corrupt", "zero", "mean", "position_mean"] = "corrupt",
    draws: int = 10,
    out: str = "runs",
    loading: ModelOptions = ModelOptions(),
    budget: int | None = None,
    quiet: bool = False,
    json: bool = False,
) -> Finished:
    """Compare how many heads two models need to explain the same tasks, or two saved runs.

    Draws a panel per task with both curves, and prints the multiplier N_standard / N_sparse with
    its interval. A run folder is written below --out; the last line is its report.

    Args:
        standard: a model (mini, smollm2, a directory, a hub id), or the folder of a discover run
        sparse: the model to compare it with, or the folder of a discover run
        tasks: a comma list of tasks; runs bring their own
        method: patch, attribution, ig, hybrid, path, direct or gating
        n: prompts that rank the heads; default: 32
        test: prompts that judge; default: 32
        seed: of the prompts and the random rankings
        split: test, train (what our embedded models have seen) or all
        threshold: share of the effect that a circuit must explain
        signed: rank by the signed effect, not by its size
        replacement: corrupt, zero, mean or position_mean, of the heads that are not kept
        draws: random rankings to compare with
        out: the folder that holds run folders
        loading: how the models are loaded
        budget: tokens per pass, which bounds memory; default: what suits the device
        quiet: no notices and no progress bar
        json: print one JSON object (headline, warnings, folder) instead of text
    """
    return run_command("compare", locals())


if __name__ == "__main__":
    run(compare)
