"""Run folders: what every command leaves behind, in one format.

A folder holds `result.json` (schema, command, all settings, headline numbers, warnings, provenance,
and the digest of every other file), tidy CSV files, reports, and `timings.json`, the only file that
may differ when the same settings run again on the same machine. It is filled under a temporary name
and renamed when complete, so that a killed run leaves nothing that looks finished.
"""

import hashlib
import json
import math
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mechheads.errors import MechheadsError, printable
from mechheads.options import read_path

from .files import beside, digest, prepare, recover, replace_folder, write_text

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = 1
DEEPEST = 50  # levels of JSON inside each other; ours has five
RESULT, TIMINGS = "result.json", "timings.json"
REPORTS = ("report.html", "report.md")


@dataclass(frozen=True)
class Record:
    """What result.json says about a run."""

    command: str
    settings: Mapping[str, Any]
    headline: Mapping[str, Any]
    provenance: Mapping[str, Any]
    warnings: tuple[str, ...] = ()
    line: str = ""  # the command line that reproduces the run, for its report

    @property
    def origins(self) -> list[Mapping[str, Any]]:
        """The provenance of each model of the run."""
        parts = [part for part in self.provenance.values() if isinstance(part, Mapping)]
        return [self.provenance] if "threads" in self.provenance else parts


def folder_for(out: str, parts: list[str], settings: Mapping[str, Any]) -> Path:
    """The folder of a run under `out`: words that describe it, and a hash of all settings.

    Checks now that `out` is writable, so that a run does not fail at the end.
    """
    if not out:
        raise MechheadsError("--out is empty. Give a folder, for example runs.")
    text = json.dumps(settings, sort_keys=True, default=str)
    code = hashlib.sha256(text.encode()).hexdigest()[:8]
    words = [re.sub(r"[^\w.]+", "_", Path(part).name).strip("_.")[:60] for part in parts]
    folder = prepare(read_path(out, "--out")) / "-".join([*filter(None, words), code])
    recover(folder)
    return folder


@contextmanager
def unless_refused(out: str) -> Iterator[None]:
    """After an error, remove what was created for `out` if it is still empty."""
    folder = read_path(out, "--out")
    created = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        yield
    except BaseException:
        with suppress(OSError):  # it holds other runs
            for place in created:
                place.rmdir()
        raise


@contextmanager
def filling(folder: Path) -> Iterator[Path]:
    """A temporary folder to write into; on success it is renamed to the run's folder.

    An older run with the same settings is replaced.
    """
    partial = beside(folder, "partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        recover(folder)
        partial.mkdir()
        yield partial
        replace_folder(folder, partial)
    except OSError as error:
        raise MechheadsError(f"cannot write {folder} ({error.strerror}).") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def keep(
    folder: Path, record: Record, timings: Mapping[str, float], write: Callable[[Path], Any]
) -> Path:
    """Make a complete run folder with what `write` puts into it."""
    with filling(folder) as partial:
        write(partial)
        finish(partial, record, timings)
    return folder


def write_table(folder: Path, name: str, frame: "pd.DataFrame") -> Path:
    """Write a tidy CSV file; floats have nine digits, enough to distinguish float32 numbers."""
    text = frame.to_csv(index=False, float_format="%.9g", lineterminator="\n")
    return write_text(folder / name, text)


def read_table(file: Path) -> "pd.DataFrame":
    """Read a CSV file; pandas itself would fetch a path that looks like an address."""
    import pandas as pd

    with file.open(encoding="utf-8", newline="") as stream:
        return pd.read_csv(stream)


def finish(folder: Path, record: Record, timings: Mapping[str, float]) -> None:
    """Write result.json with the digests of all files in the folder, and timings.json."""
    digests = {file.name: digest([file]) for file in sorted(folder.iterdir())}
    content = {
        "schema": SCHEMA,
        "command": record.command,
        "settings": dict(record.settings),
        "headline": dict(record.headline),
        "warnings": list(record.warnings),
        "provenance": dict(record.provenance),
        "files": digests,
        "signature": signature(record, digests),
    }
    write_text(folder / RESULT, json.dumps(plain(content), indent=1, ensure_ascii=False) + "\n")
    rounded = {name: round(seconds, 3) for name, seconds in timings.items()}
    write_text(folder / TIMINGS, json.dumps(rounded, indent=1) + "\n")


def signature(record: Record, digests: Mapping[str, str]) -> str:
    """A digest of the settings, the numbers and the digests of all files but the reports.

    The report shows it: a report and numbers that do not belong together are noticed.
    """
    data = {name: code for name, code in digests.items() if name not in (*REPORTS, RESULT, TIMINGS)}
    parts = [record.command, record.settings, record.headline, record.warnings, data]
    text = json.dumps(plain(parts), sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def sign(folder: Path, record: Record) -> str:
    """The signature of a folder whose reports are still to be written."""
    return signature(record, {f.name: digest([f]) for f in sorted(folder.iterdir())})


def read_run(folder: Path, command: str | None = None) -> Record:
    """Read the record of a run folder; an error names a file that is missing or damaged."""
    file = folder / RESULT
    if not folder.is_dir():
        what = "is a file, not a run folder" if folder.is_file() else "does not exist"
        raise MechheadsError(f"{folder} {what}. Give the folder of a run.")
    if not file.is_file():
        raise MechheadsError(f"{folder} is not a run folder: it has no {RESULT}. Run it again.")
    try:
        content = json.loads(file.read_text(encoding="utf-8"), parse_constant=_refuse)
        _check_plain(content)
        schema, digests = content["schema"], dict(content["files"])
        parts = (content["settings"], content["headline"], content["provenance"])
        settings, headline, provenance = map(dict, parts)
        warnings = tuple(map(str, content["warnings"]))
        record = Record(str(content["command"]), settings, headline, provenance, warnings)
        signed = content["signature"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise MechheadsError(f"{file} is damaged ({error!r}). Run it again.") from None
    if schema != SCHEMA:
        raise MechheadsError(f"{file} has schema {schema}, but this version reads {SCHEMA}.")
    for name, expected in digests.items():
        what = f"{folder} is damaged: {printable(name)[:80]}"
        if (found := _digest_in(folder, name)) is None:
            raise MechheadsError(f"{what} is missing. Run it again.")
        if found != expected:
            raise MechheadsError(f"{what} was changed. Run it again.")
    if signature(record, digests) != signed:
        raise MechheadsError(f"{folder} is damaged: {RESULT} was changed. Run it again.")
    if command is not None and record.command != command:
        raise MechheadsError(f"{folder} is a run of {record.command}, not of {command}.")
    return record


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a number")


def _check_plain(value: Any, levels: int = DEEPEST) -> None:
    """Raise a ValueError if JSON holds infinity (1e999), half a character, or is nested deeply."""
    if not levels:
        raise ValueError(f"more than {DEEPEST} levels inside each other")
    if isinstance(value, str):
        value.encode()
    elif isinstance(value, float) and not math.isfinite(value):
        _refuse("a number beyond 1e308")
    elif isinstance(value, dict):
        for part in (*value, *value.values()):
            _check_plain(part, levels - 1)
    elif isinstance(value, list):
        for part in value:
            _check_plain(part, levels - 1)


def _digest_in(folder: Path, name: str) -> str | None:
    """The digest of a file of the folder; None if there is no such file."""
    inside = folder / name
    try:
        return digest([inside]) if inside.name == name and inside.is_file() else None
    except (OSError, ValueError):  # no file can have that name, or it cannot be read
        return None


def is_run(name: str) -> bool:
    """Whether the name is that of a run folder rather than a model."""
    try:
        return (read_path(name, "the run") / RESULT).is_file()
    except (OSError, MechheadsError):
        return False


def plain(value: Any) -> Any:
    """The value as plain JSON types; NaN and infinity become null."""
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value
