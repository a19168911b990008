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
    out: str = "runs",
    loading: ModelOptions = ModelOptions(),
    budget: int | None = None,
    quiet: bool = False,
    json: bool = False,
    **options: str,
) -> Finished:
    """Ask the same questions with and without a run of filler, and look at a head's attention.

    A run folder is written below --out; the last line is its report.

    Args:
        task: a built-in task (below), or a .jsonl file with question or problem, and answer
        models: mini, mini-sparse, smollm2, a model directory, a hub id, or a comma list of them
        head: L0H3, or auto: the head whose attention moves most
        filler: the meaningless text that is repeated
        word: the meaningful word that is repeated instead
        length: tokens of filler, in every condition that has some
        place: start, between (instruction and question), end or random
        instruction: what a file's questions begin with; default: to reason step by step and to put
            the answer within \\boxed{}; true or false for built-in tasks that have their own
        conditions: none, mless (the filler), mful (the word), random (random sentences), arm (no
            filler, the first layer's activations redistributed); a comma list
        sweep: also vary place, length or filler; a comma list
        n: questions
        seed: of the questions, random sentences, random places, and arm
        split: test, train (what our embedded models have seen) or all
        max_tokens: longest answer; default: 8, or 256 for a file of questions
        arm_c: how near to zero activations are that arm moves
        arm_percentile: of the activations, up to which it moves them
        out: the folder that holds run folders
        loading: how the models are loaded
        budget: tokens per pass, which bounds memory; default: what suits the device
        quiet: no notices and no progress bar
        json: print one JSON object (headline, warnings, folder) instead of text
        options: the task's own options
    """
    return run_command("prefix", locals())


if __name__ == "__main__":
    run(prefix)
