"""Runs the job of any command: one run folder, one printed result.

1. `prepare` of the command's module checks all settings, before torch is imported.
2. The job measures; models and effects may come from a session that several jobs share.
3. The run folder is written whole or not at all.
4. The sentence, the warnings and the report's path are printed, or one JSON object.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mechheads.cli.commands import COMMANDS, OUTPUT
from mechheads.packages import check_not_hidden, no_garbage_collection
from mechheads.progress import say
from mechheads.runs import folder as runs

if TYPE_CHECKING:
    from mechheads.engine.subset_table import SubsetTable
    from mechheads.models.cache import ModelCache
    from mechheads.runs.result import Result
    from mechheads.scoring.effects import HeadEffects

REPORT = "report.html"
JOBS = {
    "discover": "discovery",
    "compare": "comparison",
    "leaderboard": "leaderboard",
    "gate": "gating",
    "mask": "masking",
    "prefix": "filler",
}


@dataclass(frozen=True)
class Session:
    """What jobs may share: models that stay loaded, and what was measured elsewhere.

    That is a discovery's effects, and subsets of heads of its curve.
    """

    models: "ModelCache | None" = None
    effects: "HeadEffects | None" = None
    quiet: bool = False
    subsets: "SubsetTable | None" = None


@dataclass(frozen=True)
class Measured:
    """What a job measured, the provenance of the numbers, and timings in seconds."""

    result: "Result"
    provenance: Mapping[str, Any]
    timings: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """Settings that passed every check: `words` name the folder, `measure` does the work."""

    words: list[str]
    models: list[str]
    settings: Mapping[str, Any]
    measure: Callable[[Session], Measured]


class Finished(NamedTuple):
    """What a command returns: the result, and its folder (None if there is none)."""

    result: Any
    folder: Path | None


def run_command(name: str, given: Mapping[str, Any]) -> Finished:
    """Run a command with the arguments of its function, and print what it found."""
    finished = run_job(name, flat(given), given["out"], Session(quiet=given["quiet"]))
    result, folder = finished
    assert folder is not None
    if given["json"]:
        print_json(name, result.headline, result.warnings, folder, result.sentence)
    else:
        print("\n".join([result.text, *(f"Warning: {words}" for words in result.warnings)]))
        print(folder / REPORT)
    return finished


def run_job(name: str, settings: Mapping[str, Any], out: str, session: Session) -> Finished:
    """Check the settings, measure, and write the run folder below `out`."""
    with runs.unless_refused(out):
        return _run_job(name, settings, out, session)


def _run_job(name: str, settings: Mapping[str, Any], out: str, session: Session) -> Finished:
    check_not_hidden()
    command = COMMANDS[name]
    settings = command.in_full(settings)
    job: Job = import_module(f".{JOBS[name]}", __package__).prepare(settings, session.quiet)
    folder = runs.folder_for(out, job.words, job.settings)
    say(f"Loading {', '.join(job.models)} ...", session.quiet)
    start = time.monotonic(), time.process_time()
    with no_garbage_collection():
        import_module("mechheads.models.load")
    from mechheads.models.devices import keep_freed_memory

    keep_freed_memory()
    measured = job.measure(session)
    timings = {
        **measured.timings,
        "seconds": time.monotonic() - start[0],
        "cpu_seconds": time.process_time() - start[1],
    }
    line = command.line(job.settings)
    result = measured.result
    record = runs.Record(
        name, job.settings, result.headline, measured.provenance, result.warnings, line
    )
    runs.keep(folder, record, timings, lambda place: result.report(place, record))
    return Finished(result, folder)


def flat(given: Mapping[str, Any]) -> dict[str, Any]:
    """A command's arguments as flat settings: groups of options and `options` are merged in."""
    settings: dict[str, Any] = {}
    for name, value in given.items():
        if is_dataclass(value) and not isinstance(value, type):
            settings |= asdict(value)
        elif name not in (*OUTPUT, "options"):
            settings[name] = value
    return settings | dict(sorted(given.get("options", {}).items()))


def print_json(
    command: str,
    headline: Mapping[str, Any],
    warnings: "tuple[str, ...] | list[str]",
    folder: Path | None,
    sentence: str = "",
) -> None:
    """Print one JSON object for scripts; NaN and infinity become null."""
    content = {
        "command": command,
        "sentence": sentence,
        "headline": headline,
        "warnings": list(warnings),
        "folder": None if folder is None else str(folder),
    }
    print(json.dumps(runs.plain(content), ensure_ascii=False, allow_nan=False))
