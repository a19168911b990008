"""Verb `attention`: what every head attends to on one prompt, for one or more models."""

from mechheads.cli.parse import run


def attention(
    *,
    models: str = "mini,mini-sparse",
    task: str = "ioi",
    prompt: str | None = None,
    seed: int = 0,
    out: str = "runs/attention.html",
    quiet: bool = False,
) -> None:
    """Draw the attention of all heads on a prompt, the models side by side, as a page.

    Args:
        models: a comma list of mini, mini-sparse, smollm2, model directories, .gguf files, hub ids
        task: the task that the prompt comes from
        prompt: a prompt of your own instead
        seed: of the task's prompt
        out: the .html file to write
        quiet: no notices
    """
    from pathlib import Path

    import tasks
    from mechheads.errors import MechheadsError
    from mechheads.models import locate
    from mechheads.progress import say
    from mechheads.runs.files import prepare

    # What can be wrong is looked at before torch is imported.
    file = Path(out).expanduser()
    if file.suffix != ".html":
        raise MechheadsError(f"--out takes a file that ends in .html, got {out}.")
    names = [name.strip() for name in models.split(",")]
    for name in names:
        locate.find(name, quiet=quiet)
    if prompt is None:
        tasks.check(task, 1, "test", {})
    prepare(file.parent)
    say(f"Loading {', '.join(names)} ...", quiet)
    from mechheads.models.load import load
    from mechheads.observe.patterns import attend, draw_heads, draw_sums
    from mechheads.prompts import lexicon_of
    from mechheads.reports.page import Section, write_page

    loaded = [load(name, quiet=quiet) for name in names]
    text = prompt
    if text is None:
        text = tasks.make(task, lexicon_of(loaded[0]), n=1, seed=seed).pairs[0].clean
    found = [attend(model, text) for model in loaded]
    note = (
        "Blue is the weight that a query (row) gives to a key (column), in the order of the tokens "
        "above; white is no weight at all."
    )
    listed = ", ".join(names)
    sections = [
        Section("All heads together", text, draw_sums(found)),
        Section("Every head by itself", note, draw_heads(found)),
    ]
    print(write_page(file, f"Attention of {listed}", sections))


if __name__ == "__main__":
    run(attention)
