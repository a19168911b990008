"""Command `attention`: what does every head attend to on one prompt?"""

from mechheads.cli.main import run
from mechheads.jobs.run import Finished
from mechheads.models.options import ModelOptions


def attention(
    *,
    models: str = "mini,mini-sparse",
    task: str | None = None,
    prompt: str | None = None,
    seed: int = 0,
    out: str = "runs/attention.html",
    loading: ModelOptions = ModelOptions(),
    quiet: bool = False,
    json: bool = False,
) -> Finished:
    """Draw the attention patterns of all heads on one prompt, models side by side, as a web page.

    Args:
        models: comma-separated: mini, mini-sparse, smollm2, model directories, .gguf files, hub ids
        task: the task to take the prompt from; if none is given, ioi, or for a model like
            known/induction the task of its name
        prompt: your own prompt instead
        seed: seed of the task's prompt
        out: the .html file to write
        loading: how the models are loaded
        quiet: print no notices
        json: print one JSON object (headline, warnings, folder) instead of text
    """
    from mechheads.jobs.attention import run_attention

    return run_attention(locals())


if __name__ == "__main__":
    run(attention)
