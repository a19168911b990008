"""Command `gate`: which heads facilitate, interfere, or do not matter?"""

from mechheads.cli.main import run
from mechheads.jobs.run import Finished, run_command
from mechheads.models.options import ModelOptions


def gate(
    *,
    task: str = "syntax",
    model: str = "mini",
    seeds: int = 10,
    n: int | None = None,
    test: int | None = None,
    seed: int = 0,
    split: str = "test",
    lambda_: float = 0.1,
    updates: int = 500,
    rates: str = "0.1,0.01",
    pulled_rates: str = "0.5,0.1",
    batch: int | None = None,
    clip: float = 4.0,
    k: int = 50,
    points: int | None = None,
    no_patching: bool = False,
    retain: str | None = None,
    forget: str | None = None,
    family: str | None = None,
    out: str = "runs",
    loading: ModelOptions = ModelOptions(),
    budget: int | None = None,
    quiet: bool = False,
    json: bool = False,
    **options: str,
) -> Finished:
    """Fit a gate to every head of a model on a task, and say which heads the task needs.

    Three fits per seed: free, pulled open (G+) and pulled shut (G-). Some prompts fit the gates,
    others test them. With lists of tasks and models the report has a panel for each of both. A run
    folder is written below --out; the last line is its report.

    With --retain and --forget gates are fitted instead that keep the answers of one task and lose
    those of the other. Options of a task are written as task:option=value+option=value. With
    --family, a list of tasks, --retain and --forget are options alone (shots=2+instruction=false),
    and every task of the family is left out of the fit in turn and tested.

    Args:
        task: a built-in task (below), a .jsonl file, or a comma list of them
        model: mini, mini-sparse, smollm2, a model directory, a hub id, or a comma list of them
        seeds: fits from different random gates
        n: prompts that the gates are fitted to; default: 96, or what a task has less --test
        test: prompts that test them, about other things; default: 32, or what --n leaves, or a
            quarter of a small task
        seed: of the prompts, their order and the first gates
        split: test, train (what our embedded models have seen) or all
        lambda_: how hard gates are pulled open and shut
        updates: of each fit
        rates: learning rates of the free fit, the first and the last
        pulled_rates: learning rates of the pulled fits, the first and the last
        batch: prompts in an update; default: 64, on a CPU 8
        clip: the logit at which the pull ends, and its negative
        k: how many heads the ablation curves shut
        points: measure only so many points of these curves; default: every k
        no_patching: do not compare with exact patching, which costs a pass per head
        retain: contrastive gating: the task to keep
        forget: contrastive gating: the task to lose
        family: contrastive gating: tasks to leave out in turn
        out: the folder that holds run folders
        loading: how the models are loaded
        budget: tokens per pass, which bounds memory; default: what suits the device
        quiet: no notices and no progress bar
        json: print one JSON object (headline, warnings, folder) instead of text
        options: the task's own options
    """
    return run_command("gate", locals())


if __name__ == "__main__":
    run(gate)
