"""Command `show`: what does a task ask, and can a model do it?"""

from mechheads.cli.main import run
from mechheads.jobs.run import Finished
from mechheads.models.options import ModelOptions


def show(
    *,
    task: str | None = None,
    model: str = "mini",
    n: int = 5,
    seed: int = 0,
    split: str = "test",
    skip_misaligned: bool = False,
    metric: str | None = None,
    test: int | None = None,
    loading: ModelOptions = ModelOptions(),
    quiet: bool = False,
    json: bool = False,
    **options: str,
) -> Finished:
    """Show a task's prompts with the differing tokens marked, and how well a model does on them.

    Args:
        task: a built-in task (below), a .jsonl file with clean, corrupt, answer and wrong, or all
            (a table of all built-in tasks, without prompts); if none is given, ioi, or for a model
            like known/induction the task of its name
        model: mini, mini-sparse, smollm2, known/induction (or another model with known heads), a
            model directory, a .gguf file or a hub id
        n: number of prompts to print
        seed: seed of the prompts
        split: test, train (what the embedded models were trained on) or all
        skip_misaligned: leave out prompts of a task file that cannot be used with the model's
            tokenizer, e.g. because clean and corrupt differ in length
        metric: logit_diff, logit_diff_max, prob_diff, logprob, accuracy, top1 or kl; default: the
            task's own
        test: prompts to evaluate the model on; default: 64, or all lines of a task file. With
            --task all, tasks that have fewer use all they have
        loading: how the models are loaded
        quiet: print no notices and show no progress bar
        json: print one JSON object (headline, warnings, folder) instead of text
        options: options of the task
    """
    from mechheads.jobs.show import show_tasks

    return show_tasks(locals())


if __name__ == "__main__":
    run(show)
