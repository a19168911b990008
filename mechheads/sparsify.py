"""Command `sparsify`: teach a model to do the same with few attention edges."""

from mechheads.cli.main import run
from mechheads.jobs.run import Finished
from mechheads.jobs.sparsify import run_sparsify


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
    json: bool = False,
) -> Finished:
    """Post-train a model to use few attention edges at next to no cost in loss.

    Run it again to resume where it stopped. The result is a model directory; its training/
    subfolder holds a report with the curves, the log and the checkpoint.

    Args:
        model: mini, smollm2, a model directory, a .gguf file or a hub id
        out: the folder for the sparse model
        text: a text file, a folder of .txt and .md files, or `tasks` (the built-in tasks' prompts)
        length: tokens per sequence of text
        steps: optimizer steps
        batch: prompts or sequences per step; default: 128 prompts or 8 sequences
        slack: how much the loss may rise above the dense model's, in nats
        density: fraction of causal edges below which no more are pushed to close
        rate: learning rate of the weights
        settle: last fraction of the steps, with deterministic gates and falling learning rates
        decay: weight decay of the matrices in the blocks
        distill: weight of the divergence from the dense model's predictions; 0 for none
        lora: rank of low-rank adapters, for models too large to train fully; 0 trains all weights
        start: a sparse model made earlier from the same dense model, to continue from
        seed: seed of the data and the gates
        stop_after: stop at this step, to resume later
        revision: branch, tag or commit of a hub model
        device: cpu, cuda, cuda:1 or mps; default: the best one available
        threads: CPU threads; default: torch's choice
        quiet: print no notices and show no progress bar
        json: print one JSON object (headline, warnings, folder) instead of text
    """
    return run_sparsify(locals())


if __name__ == "__main__":
    run(sparsify)
