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
        json: print one JSON object (headline, warnings, folder) instead of text
    """
    return run_sparsify(locals())


if __name__ == "__main__":
    run(sparsify)
