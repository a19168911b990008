"""Plain text on disk: a file, or all .txt and .md files of a folder. Nothing here needs torch."""

from pathlib import Path

from mechheads.errors import MechheadsError


def text_files(place: Path) -> list[Path]:
    """The files that --text refers to; an error says what is wrong with it."""
    if place.is_dir():
        files = sorted(f for f in place.rglob("*") if f.suffix in (".txt", ".md") and f.is_file())
        if not files:
            raise MechheadsError(f"The folder {place} has no .txt or .md files. Give another.")
    elif place.is_file():
        files = [place]
    else:
        raise MechheadsError(
            f"No such text: {place}. Give a text file, a folder of .txt and .md files, or `tasks`."
        )
    if not any(file.stat().st_size for file in files):
        raise MechheadsError(f"{place} is empty. Give a file with text in it.")
    return files


def read(file: Path) -> str:
    """The file's text."""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise MechheadsError(f"{file} cannot be read as UTF-8 text ({error}).") from None
