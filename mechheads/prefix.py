"""Command `prefix`: what does meaningless filler do to a model?"""

from mechheads.cli.main import run
from mechheads.filler.conditions import ARM_C, ARM_PERCENTILE, Place
from mechheads.jobs.run import Finished, run_command
from mechheads.models.options import ModelOptions


def prefix(
    *,
    task: str = "math_calculation",
    models: str = "mini",
    head: str = "auto",
    filler: str = "/",
    word: str = "he",
    length: int = 55,
    place: Place = "between",
    instruction: str | None = None,
    conditions: str = "none,mless,mful,random",
    sweep: str = "",
    n: int = 100,
    seed: int = 0,
    split: str = "test",
    max_tokens: int | None = None,
    arm_c: float = ARM_C,
    arm_percentile: float = ARM_PERCENTILE,
    arm_pmin: float | None = None,
    out: str = "runs",
    loading: ModelOptions = ModelOptions(),
    budget: int | None = None,
    quiet: bool = False,
    json: bool = False,
    **options: str,
) -> Finished:
    """Ask the same questions with and without filler tokens, and plot a head's attention.

    Writes a run folder under --out and prints the path of its report last.

    Args:
        task: a built-in task (below), or a .jsonl file with question (or problem) and answer
        models: mini, mini-sparse, smollm2, a model directory, a hub id, or several separated by
            commas
        head: for example L0H3, or auto: the head whose attention changes most
        filler: the meaningless text to repeat
        word: the meaningful word to repeat instead
        length: tokens of filler, in every condition that has filler
        place: where the filler goes: start, between (instruction and question), end or random
        instruction: text before a file's questions; default: to reason step by step and put the
            answer within \\boxed{}; true or false for built-in tasks that have their own
        conditions: comma-separated: none, mless (the filler), mful (the word), random (random
            sentences), arm (no filler, but the first layer's activations redistributed)
        sweep: also vary any of place, length, filler, separated by commas
        n: number of questions
        seed: seed of the questions, random sentences, random places and arm
        split: test, train (what the embedded models were trained on) or all
        max_tokens: longest answer in tokens; default: 8, or 256 for a file of questions
        arm_c: how close to zero an activation must be for arm to move it
        arm_percentile: percentile of the activations up to which arm moves positive ones
        arm_pmin: smallest share of the activations that arm moves; default: the authors' 0.2 for
            Llama models, and 0.02 for all others
        out: parent folder of the run folders
        loading: how the models are loaded
        budget: tokens per pass, which bounds memory; default: chosen for the device
        quiet: print no notices and show no progress bar
        json: print one JSON object (headline, warnings, folder) instead of text
        options: options of the task
    """
    return run_command("prefix", locals())


if __name__ == "__main__":
    run(prefix)
