"""Command `leaderboard`: which scoring method finds the better circuit?"""

from typing import Literal

from mechheads.cli.main import run
from mechheads.jobs.run import Finished, run_command
from mechheads.models.options import ModelOptions


def leaderboard(
    *,
    models: str = "mini",
    tasks: str = "ioi,greater_than,docstring",
    methods: str = "patch,attribution,ig,atp,gim,hybrid,direct,random",
    seeds: int = 3,
    seed: int = 0,
    n: int | None = None,
    test: int | None = None,
    split: str = "test",
    skip_misaligned: bool = False,
    threshold: float = 0.9,
    replacement: Literal["corrupt", "zero", "mean", "position_mean"] = "corrupt",
    draws: int = 10,
    out: str = "runs",
    loading: ModelOptions = ModelOptions(),
    budget: int | None = None,
    quiet: bool = False,
    json: bool = False,
) -> Finished:
    """Compare scoring methods by the circuits they find, on the same models, tasks and prompts.

    Each method ranks the heads on some prompts, and the ranking is judged on others: MIB's CPR and
    CMD, the fewest heads that explain the threshold, and AUROC where the heads are known. A model
    like known/induction is asked the task of its name only, the other models all tasks. What cannot
    be measured is left out with a warning. The report ranks the methods, with intervals; the CPU
    seconds of each are in timings.json. Writes a run folder under --out and prints the path of its
    report last.

    Args:
        models: comma-separated: mini, mini-sparse, smollm2, known/induction (or another model with
            known heads), a model directory, a .gguf file or a hub id
        tasks: comma-separated tasks, for all models but those with known heads
        methods: comma-separated: random (the baseline), patch, attribution, ig, atp, gim, hybrid,
            path, direct, gating, or an ensemble of several, joined by plus signs; options of
            a method follow its name and a colon
        seeds: number of samples of prompts, from --seed on; intervals are over them
        seed: the first seed, of the prompts and the random rankings
        n: prompts to rank the heads on; default: 32, or half of a task file
        test: prompts to judge the rankings on; default: 32, or the other half of a task file
        split: test, train (what the embedded models were trained on) or all
        skip_misaligned: leave out prompts of a task file that cannot be used with the model's
            tokenizer, e.g. because clean and corrupt differ in length
        threshold: fraction of the effect that the fewest heads must explain
        replacement: what replaces the heads not kept: corrupt, zero, mean or position_mean
        draws: number of random rankings that are the baseline
        out: parent folder of the run folders
        loading: how the models are loaded
        budget: tokens per pass, which bounds memory; default: chosen for the device
        quiet: print no notices and show no progress bar
        json: print one JSON object (headline, warnings, folder) instead of text
    """
    return run_command("leaderboard", locals())


if __name__ == "__main__":
    run(leaderboard)
