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
    skip_misaligned: bool = False,
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
    """Fit a gate to every head of a model on a task to find which heads the task needs.

    Each seed gets three fits: free, pulled open (G+) and pulled closed (G-). Gates are fitted on
    one set of prompts and tested on another. With several tasks or models, the report has a panel
    for each combination. Writes a run folder under --out and prints the path of its report last.

    With --retain and --forget, gates are instead fitted to retain the answers of one task and
    forget those of the other. Task options are written as task:option=value+option=value. With
    --family (a list of tasks), --retain and --forget take options only (shots=2+instruction=false),
    and each task of the family is held out of the fit in turn and tested.

    Args:
        task: a built-in task (below), a .jsonl file, or several separated by commas
        model: mini, mini-sparse, smollm2, a model directory, a hub id, or several separated by
            commas
        seeds: number of fits, each from different random gates
        n: prompts to fit the gates on; default: 96, or all that a task has minus --test
        test: held-out prompts to test them on; default: 32, or what --n leaves, or a quarter of a
            small task
        seed: seed of the prompts, their order and the initial gates
        split: test, train (what the embedded models were trained on) or all
        skip_misaligned: leave out prompts of a task file that cannot be used with the model's
            tokenizer, e.g. because clean and corrupt differ in length
        lambda_: how hard gates are pulled open or closed
        updates: updates per fit
        rates: first and last learning rate of the free fit
        pulled_rates: first and last learning rate of the pulled fits
        batch: prompts per update; default: 64, or 8 on a CPU
        clip: gate logits are pulled no further than plus or minus this value
        k: largest number of heads to ablate in the ablation curves
        points: number of points to measure on these curves; default: every k
        no_patching: skip the comparison with exact patching, which costs a pass per head
        retain: contrastive gating: the task to retain
        forget: contrastive gating: the task to forget
        family: contrastive gating: tasks to hold out in turn
        out: parent folder of the run folders
        loading: how the models are loaded
        budget: tokens per pass, which bounds memory; default: chosen for the device
        quiet: print no notices and show no progress bar
        json: print one JSON object (headline, warnings, folder) instead of text
        options: options of the task
    """
    return run_command("gate", locals())


if __name__ == "__main__":
    run(gate)
