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
    level: Literal["heads", "edges"] = "heads",
    method: str = "auto",
    n: int | None = None,
    test: int | None = None,
    seed: int = 0,
    split: str = "test",
    skip_misaligned: bool = False,
    threshold: float = 0.9,
    signed: bool = False,
    replacement: Literal["corrupt", "zero", "mean", "position_mean"] = "corrupt",
    points: str = "auto",
    draws: int = 10,
    out: str = "runs",
    loading: ModelOptions = ModelOptions(),
    budget: int | None = None,
    quiet: bool = False,
    json: bool = False,
) -> Finished:
    """Compare how many heads two models (or two saved runs) need to explain the same tasks.

    Plots both curves for each task and prints the multiplier, heads of --standard / heads of
    --sparse, with its confidence interval. With --level edges, counts circuit edges instead, from
    head to head, to MLPs and to the logits (attention edges are query-key pairs). Runs that differ
    in metric or replacement are refused; other differences are warnings. Writes a run folder under
    --out and prints the path of its report last.

    Args:
        standard: a model (mini, smollm2, a directory, a hub id), or the folder of a discover run
        sparse: the model to compare it with, or the folder of a discover run
        tasks: comma-separated tasks; saved runs have their own
        level: heads, or circuit edges; saved runs have their own
        method: patch, attribution, ig, atp, gim, hybrid, path, direct or gating, an ensemble of
            several, or auto: patch if that takes at most 10 minutes here, else hybrid
        n: prompts to rank the heads on; default: 32
        test: prompts to evaluate the ranking on; default: 32
        seed: seed of the prompts and the random rankings
        split: test, train (what the embedded models were trained on) or all
        skip_misaligned: leave out prompts of a task file that cannot be used with the model's
            tokenizer, e.g. because clean and corrupt differ in length
        threshold: fraction of the effect that a circuit must explain
        signed: rank by the signed effect, not its magnitude
        replacement: what replaces the heads not kept: corrupt, zero, mean or position_mean
        points: at how many numbers of heads to measure the curve: auto (every one up to 64 heads,
            about 60 of more), all, or a number; more are added around --threshold
        draws: number of random rankings to compare with
        out: parent folder of the run folders
        loading: how the models are loaded
        budget: tokens per pass, which bounds memory; default: chosen for the device
        quiet: print no notices and show no progress bar
        json: print one JSON object (headline, warnings, folder) instead of text
    """
    return run_command("compare", locals())


if __name__ == "__main__":
    run(compare)
