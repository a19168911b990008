"""User-defined tasks: records with `clean`, `corrupt`, `answer` and `wrong`.

{"clean": "Paris is in", "corrupt": "Rome is in", "answer": " France", "wrong": [" Italy"]}

One JSON object per line of a file, a list of dictionaries, or a pandas frame. `answer` and `wrong`
are a string or a list of strings, including the leading space if any.
"""

import json
import random
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mechheads.errors import MechheadsError, unknown
from mechheads.options import read_path
from mechheads.prompts import Pair, Prompts

if TYPE_CHECKING:
    import pandas as pd

CHOICES = 500  # answers of one prompt: each may be a pass of its own
FIELDS = ("clean", "corrupt", "answer", "wrong")


def from_records(
    records: "Iterable[Mapping[str, Any]] | pd.DataFrame",
    *,
    name: str = "own",
    metric: str = "logit_diff",
) -> Prompts:
    """Make prompts from your own records.

    Args:
        records: dictionaries or a pandas frame with clean, corrupt, answer and wrong; answer and
            wrong may be lists of alternatives, including the leading space
        name: what the task is called in results
        metric: a name in `mechheads.METRICS`

    Returns:
        Prompts, used like those of `tasks.make`.

    >>> import tasks
    >>> pair = {"clean": "2 + 3 =", "corrupt": "2 + 4 =", "answer": " 5", "wrong": " 6"}
    >>> len(tasks.from_records([pair]))
    1
    """
    frame: Any = records
    if hasattr(frame, "to_dict"):
        records = frame.to_dict("records")
    if not isinstance(records, Iterable):
        raise MechheadsError(f"Task {name} takes a list of records or a frame, got {records!r}.")
    pairs = [_pair(record, f"Record {i} of {name}") for i, record in enumerate(records, start=1)]
    if not pairs:
        raise MechheadsError(f"Task {name} has no records. Give at least one {_example()}.")
    return Prompts(name, metric, tuple(pairs))


def from_file(path: str | Path, *, metric: str = "logit_diff") -> Prompts:
    """Prompts from a JSONL file; errors name the line number."""
    path = read_path(path, "the task file")
    try:
        state = path.stat()
        return replace(_read(path, state.st_size, state.st_mtime_ns), metric=metric)
    except FileNotFoundError:
        raise MechheadsError(f"No task file {path}. Give an existing .jsonl file.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise MechheadsError(
            f"Cannot read {path} ({error}). Give a UTF-8 text file with one object per line."
        ) from None


@lru_cache(maxsize=8)
def _read(path: Path, size: int, changed: int) -> Prompts:
    """The prompts of a file; an unchanged file is parsed once per process."""
    # A byte-order mark is not text; only line feeds end a line of JSON.
    lines = path.read_text(encoding="utf-8-sig").split("\n")
    pairs = [
        _pair(_object(line, where := f"{path}, line {i}"), where)
        for i, line in enumerate(lines, start=1)
        if line.strip()
    ]
    if not pairs:
        raise MechheadsError(f"{path} is empty. Give one object per line: {_example()}.")
    return Prompts(path.stem, "logit_diff", tuple(pairs))


def sample(prompts: Prompts, n: int | None, seed: int) -> Prompts:
    """n different pairs in a seeded order, or all as they are if n is None.

    A larger n only adds pairs. If there are fewer than n, all of them.
    """
    if n is None:
        return prompts
    different = list(dict.fromkeys(prompts.pairs))
    order = random.Random(f"{prompts.digest()}/{seed}").sample(different, len(different))
    return Prompts(prompts.task, prompts.metric, tuple(order[:n]), seed)


def _object(line: str, where: str) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise MechheadsError(
            f"{where}: not JSON ({error.msg} at column {error.colno}). Write {_example()}."
        ) from None
    except RecursionError:
        raise MechheadsError(f"{where}: nested too deeply. Write {_example()}.") from None


def _pair(record: Any, where: str) -> Pair:
    if not isinstance(record, Mapping):
        shown = repr(record) if len(repr(record)) < 60 else f"{repr(record)[:56]}..."
        raise MechheadsError(f"{where}: expected an object, got {shown}. Write {_example()}.")
    for key in record:
        if key not in FIELDS:
            raise MechheadsError(f"{where}: {unknown('field', str(key), FIELDS)}")
    for key in FIELDS:
        if key not in record:
            raise MechheadsError(f"{where}: the field {key!r} is missing. Write {_example()}.")
    clean, corrupt = (_text(record[key], key, where) for key in ("clean", "corrupt"))
    answers, wrong = (_texts(record[key], key, where) for key in ("answer", "wrong"))
    if both := set(answers) & set(wrong):
        raise MechheadsError(f"{where}: {both.pop()!r} is both an answer and a wrong answer.")
    if len(answers) + len(wrong) > CHOICES:
        raise MechheadsError(
            f"{where}: {len(answers) + len(wrong):,} answers, right and wrong; at most {CHOICES} "
            "are possible."
        )
    return Pair(clean, corrupt, answers, wrong, source=where)


def _text(value: Any, key: str, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise MechheadsError(f"{where}: {key!r} must be non-empty text, got {value!r}.")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise MechheadsError(f"{where}: {key!r} has an unpaired surrogate.") from None
    return value


def _texts(value: Any, key: str, where: str) -> tuple[str, ...]:
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list | tuple) or not values:
        raise MechheadsError(f"{where}: {key!r} must be text or a list of texts, got {value!r}.")
    return tuple(dict.fromkeys(_text(v, key, where) for v in values))


def _example() -> str:
    return '{"clean": ..., "corrupt": ..., "answer": ..., "wrong": ...}'
