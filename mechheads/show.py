"""Verb `show`: what a task asks, and how well a model answers."""

from .cli import run


def show(
    task: str = "ioi",
    model: str = "smollm2",
    n: int = 5,
    seed: int = 0,
    split: str = "test",
    metric: str | None = None,
    test: int = 64,
    revision: str | None = None,
    device: str | None = None,
    dtype: str = "float32",
    process: bool = False,
    n_ctx: int | None = None,
    prepend_bos: bool | None = None,
    quiet: bool = False,
    **options: str,
) -> None:
    """Look at a task: its prompts with the differing tokens marked, and whether a model can do it.

    Args:
        task: a built-in task (below), or a .jsonl file with clean, corrupt, answer and wrong
        model: an embedded model, smollm2, a model directory, a .gguf file or a hub id
        n: prompts to print
        seed: of the prompts
        split: test, train (what our embedded models have seen) or all
        metric: logit_diff, logit_diff_max, prob_diff, logprob, accuracy, top1; default: the task's
        test: prompts to measure the model on (all lines of a task file)
        revision: branch, tag or commit of a hub model
        device: cpu, cuda, cuda:1, mps; default: the best there is
        dtype: float32, float64, bfloat16 or float16
        process: fold layer norms and centre weights
        n_ctx: longest input in tokens; default: the model's own limit, at most 2048
        prepend_bos: true or false; default: TransformerLens's custom for the architecture
        quiet: no notices and no progress bar
        options: the task's own options
    """
    import tasks

    from . import sources
    from .progress import say

    # What can be wrong is looked at before torch is imported.
    tasks.check(task, min(n, test), split, options)
    sources.find(model, revision, quiet=quiet)
    say(f"Loading {model} ...", quiet)
    from . import metrics
    from .display import print_evaluation, print_prompts
    from .evaluation import evaluate
    from .models import lexicon, load

    if metric:
        metrics.find(metric)

    loaded = load(
        model,
        revision=revision,
        device=device,
        dtype=dtype,
        process=process,
        n_ctx=n_ctx,
        prepend_bos=prepend_bos,
        quiet=quiet,
    )
    prompts = tasks.make(task, lexicon(loaded), n=max(n, test), seed=seed, split=split, **options)
    evaluation = evaluate(loaded, prompts, metric, quiet=quiet)
    print_prompts(loaded, prompts, n)
    print_evaluation(evaluation)


def notes() -> str:
    """The tasks and their own flags, for the help text."""
    from tasks import TASKS

    lines = ["Tasks and their own flags:"]
    for task in TASKS.values():
        flags = [f"--{o.name.replace('_', '-')} [{o.default}]" for o in task.options.values()]
        lines += [f"  {task.name:<14}{task.summary}", f"  {'':<14}{'  '.join(flags)}"]
    return "\n".join(lines)


if __name__ == "__main__":
    run(show, notes)
