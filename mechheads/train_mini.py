"""Command `train_mini`: train the embedded model from scratch, as we did."""

from mechheads.cli.main import run
from mechheads.jobs.run import Finished
from mechheads.jobs.train_mini import run_training


def train_mini(
    *,
    out: str = "runs/mini",
    steps: int = 4500,
    last: int = 800,
    layers: int = 4,
    heads: int = 8,
    width: int = 128,
    seed: int = 0,
    workers: int = 2,
    stop_after: int | None = None,
    quiet: bool = False,
    json: bool = False,
) -> Finished:
    """Train the embedded model from scratch on the training split of the eleven tasks.

    Run it again to resume where it stopped. The result is a model directory; its training/
    subfolder holds a report with the curves, the log and the checkpoint.

    Args:
        out: the folder for the model
        steps: optimizer steps, the last fifth of them with attention dropout
        last: additional final steps, without dropout
        layers: number of layers
        heads: heads per layer
        width: width of the residual stream
        seed: seed of the weights and the prompts
        workers: processes that split the rows of each step, one CPU core each
        stop_after: stop at this step, to resume later
        quiet: show no progress bar
        json: print one JSON object (headline, warnings, folder) instead of text
    """
    return run_training(locals())


if __name__ == "__main__":
    run(train_mini)
