"""Command `show`: what does a task ask, and can a model do it?"""

from mechheads.cli.main import run
from mechheads.jobs.run import Finished
from mechheads.models.options import ModelOptions


def show(
    *,
    task: str = "ioi",
    model: str = "mini",
    n: int = 5,
    seed: int = 0,
    split: str = "test",
    metric: str | None = None,
    test: int | None = None,
    loading: ModelOptions = ModelOptions(),
    quiet: bool = False,
    json: bool = False,
    **options: str,
) -> Finished:
    """Look at a task: its prompts with the differing tokens marked, and whether a model can do it.

    Args:
        task: a built-in task (below), a .jsonl file with clean, corrupt, answer and wrong, or all:
            a table of all built-in tasks, no prompts
        model: mini, mini-sparse, smollm2, a model directory, a .gguf file or a hub id
        n: prompts to print
        seed: of the prompts
        split: test, train (what our embedded models have seen) or all
        metric: logit_diff, logit_diff_max, prob_diff, logprob, accuracy, top1; default: the task's
        test: prompts to measure the model on; default: 64, or all lines of a task file. With --task
            all, as many as a task has if it has fewer
        loading: how the models are loaded
        quiet: no notices and no progress bar
        json: print one JSON object (headline, warnings, folder) instead of text
        options: the task's own options
    """
    from mechheads.jobs.show import show_tasks

    return show_tasks(locals())


if __name__ == "__main__":
    run(show)
