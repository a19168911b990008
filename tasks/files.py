"""User-defined tasks: records with `clean`, `corrupt`, `answer` and `wrong`.

{"clean": "Paris is in", "corrupt": "Rome is in", "answer": " France", "wrong": [" Italy"]}

One JSON object per line of a file, a list of dictionaries, or a pandas frame. `answer` and `wrong`
are a string or a list of strings, including the leading space if any. `wrong` may be left out for
metrics that do not compare with wrong answers (logprob, kl, top1), `corrupt` for ablations (zero,
mean). Prompts with the same `group` (optional) are never in both the training and the test half.
`spans` (optional) names parts of the clean prompt, by their text if it occurs once or by characters
[begin, end): {"spans": {"CITY": "Paris", "VERB": [6, 8]}}. Other fields are ignored.
"""

import json
import random
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mechheads.errors import MechheadsError, shown, suggest
from mechheads.options import read_input
from mechheads.prompts import Pair, Prompts, Span, TokenIds, drop_misaligned, encoder_for

if TYPE_CHECKING:
    import pandas as pd

CHOICES = 500  # answers of one prompt: each may be a pass of its own
FIELDS = ("clean", "corrupt", "answer", "wrong")
NEEDED = ("clean", "answer")


def from_records(
    records: "Iterable[Mapping[str, Any]] | pd.DataFrame",
    *,
    name: str = "own",
    metric: str | None = None,
    usable_by: Any = None,
) -> Prompts:
    """Make prompts from your own records.

    Args:
        records: dictionaries or a pandas frame with clean, corrupt, answer and wrong; answer and
            wrong may be lists of alternatives, including the leading space; corrupt and wrong may
            be left out if nothing that you measure needs them; spans may name parts of clean
        name: what the task is called in results
        metric: a name in `mechheads.METRICS`; default: logit_diff, or logprob if a record has no
            wrong answer
        usable_by: a model or tokenizer: leave out the records that cannot be used with it, e.g.
            because clean and corrupt differ in length; `skipped` counts them

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
    made = Prompts(name, metric or _metric(pairs), tuple(pairs))
    return made if usable_by is None else drop_misaligned(encoder_for(usable_by), made)


def from_tokens(
    clean: Any,
    corrupt: Any = None,
    answers: Any = None,
    wrong: Any = None,
    *,
    name: str = "own",
    metric: str | None = None,
    spans: Any = None,
) -> Prompts:
    """Make prompts from token ids, for example for a toy model without a tokenizer.

    Args:
        clean: a row of token ids per prompt: lists or a tensor; BOS is not added
        corrupt: the same for the corrupted prompts; may be left out if nothing needs them
        answers: the right next token of every prompt: an id, or a list of alternatives
        wrong: the wrong ones; may be left out if the metric needs none
        name: what the task is called in results
        metric: a name in `mechheads.METRICS`; default: logit_diff, or logprob without wrong answers
        spans: names for positions, such as {"A": 3, "B": [4, 5]}, for all prompts, or a list with
            one such table per prompt

    Returns:
        Prompts, used like those of `tasks.make`.

    >>> import tasks
    >>> prompts = tasks.from_tokens([[1, 5, 2, 5]], [[1, 6, 2, 5]], [2], [3])
    >>> prompts[0].clean, prompts[0].answers
    ('1 5 2 5', ('2',))
    """
    if answers is None:
        raise MechheadsError(f"Task {name} has no answers. Give the right next token of each row.")
    first = _rows(clean)
    none = [[] for _ in first]
    others = [none if rows is None else _rows(rows) for rows in (corrupt, answers, wrong)]
    rows = [first, *others]
    if len(set(map(len, rows))) > 1:
        listed = ", ".join(map(str, map(len, rows)))
        raise MechheadsError(
            f"Task {name} has {listed} clean prompts, corrupted prompts, answers and wrong answers."
        )
    if not rows[0]:
        raise MechheadsError(f"Task {name} has no prompts. Give at least one row of token ids.")
    marked = _token_spans(spans, rows[0], name)
    try:
        pairs = [
            Pair(
                TokenIds.of(one),
                TokenIds.of(two),
                tuple(map(TokenIds.of, [right] if isinstance(right, int) else right)),
                tuple(map(TokenIds.of, [other] if isinstance(other, int) else other)),
                source=f"Prompt {i} of {name}",
                spans=marked[i - 1],
            )
            for i, (one, two, right, other) in enumerate(zip(*rows, strict=True), start=1)
        ]
        for pair in pairs:
            texts: tuple[Any, ...] = (pair.clean, pair.corrupt, *pair.answers, *pair.wrong)
            _ = [text.ids for text in texts]
    except (TypeError, ValueError) as error:
        raise MechheadsError(f"Task {name}: token ids are whole numbers ({error}).") from None
    return Prompts(name, metric or _metric(pairs), tuple(pairs))


def _rows(column: Any) -> list[Any]:
    return column.tolist() if hasattr(column, "tolist") else list(column)


def from_file(path: str | Path) -> Prompts:
    """Prompts from a JSONL file; errors name the line number."""
    path = read_input(path, "the task file")
    try:
        state = path.stat()
        return _read(path, state.st_size, state.st_mtime_ns)
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
    return Prompts(path.stem, _metric(pairs), tuple(pairs))


def sample(prompts: Prompts, n: int | None, seed: int) -> Prompts:
    """n different pairs in a seeded order, or all as they are if n is None.

    A larger n only adds pairs. If there are fewer than n, all of them.
    """
    if n is None:
        return prompts
    different = list(dict.fromkeys(prompts.pairs))
    order = random.Random(f"{prompts.digest()}/{seed}").sample(different, len(different))
    return replace(prompts, pairs=tuple(order[:n]), seed=seed)


def _object(line: str, where: str) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise MechheadsError(
            f"{where}: not JSON ({error.msg} at column {error.colno}). Write {_example()}."
        ) from None
    except (ValueError, RecursionError):
        raise MechheadsError(
            f"{where}: nested too deeply, or a number of thousands of digits. Write {_example()}."
        ) from None


def _pair(record: Any, where: str) -> Pair:
    if not isinstance(record, Mapping):
        got = shown(record, 60)
        raise MechheadsError(f"{where}: expected an object, got {got}. Write {_example()}.")
    for key in FIELDS:
        if key not in record:
            if key not in NEEDED and not suggest(key, map(str, record)):
                continue
            near = [str(other) for other in record if str(other) not in (*FIELDS, "group")]
            hint = suggest(key, near)
            raise MechheadsError(
                f"{where}: the field {key!r} is missing.{hint} Write {_example()}."
            )
    clean = _text(record["clean"], "clean", where)
    corrupt = "" if _empty(record, "corrupt") else _text(record["corrupt"], "corrupt", where)
    answers = _texts(record["answer"], "answer", where)
    wrong = () if _empty(record, "wrong") else _texts(record["wrong"], "wrong", where)
    if both := set(answers) & set(wrong):
        raise MechheadsError(f"{where}: {shown(both.pop())} is both an answer and a wrong answer.")
    if len(answers) + len(wrong) > CHOICES:
        raise MechheadsError(
            f"{where}: {len(answers) + len(wrong):,} answers, right and wrong; at most {CHOICES} "
            "are possible."
        )
    group = "" if _empty(record, "group") else record["group"]
    if not isinstance(group, str | int | float):
        raise MechheadsError(f"{where}: 'group' must be text or a number, got {shown(group)}.")
    group = checked_text(str(group), "group", where)
    spans = _spans(record, clean, where)
    return Pair(clean, corrupt, answers, wrong, group, source=where, spans=spans)


def _spans(record: Mapping[str, Any], clean: str, where: str) -> tuple[Span, ...]:
    """The spans of a record, in reading order."""
    given = {} if _empty(record, "spans") else record["spans"]
    if not isinstance(given, Mapping):
        raise MechheadsError(
            f'{where}: \'spans\' must be a table such as {{"IO": "Mary", "S1": [5, 9]}}, '
            f"got {shown(given)}."
        )
    found = []
    for name, value in given.items():
        what = f"{where}: the span {shown(checked_text(str(name), 'spans', where))}"
        if isinstance(value, str) and value in clean:
            begin = clean.index(value)
            if not value or clean.find(value, begin + 1) >= 0:
                raise MechheadsError(
                    f"{what} is {shown(value)}, which occurs several times in 'clean'. Give its "
                    "characters as numbers, such as [5, 9]."
                )
            found.append(_span(name, begin, begin + len(value), what))
        elif isinstance(value, str):
            raise MechheadsError(f"{what} is {shown(value)}, which does not occur in 'clean'.")
        elif not _are_positions(value, len(clean) + 1) or len(value) != 2:
            raise MechheadsError(
                f"{what} is {shown(value)}, expected its text or its characters [begin, end] "
                f"from 0 to {len(clean)}."
            )
        else:
            found.append(_span(name, value[0], value[1], what))
    return tuple(sorted(found, key=lambda span: span.begin))


def _token_spans(spans: Any, rows: list[Any], task: str) -> list[tuple[Span, ...]]:
    """The spans of prompts of token ids: a span per named position, in reading order."""
    spans = {} if spans is None else spans
    tables = [spans] * len(rows) if isinstance(spans, Mapping) else list(spans)
    if len(tables) != len(rows) or not all(isinstance(table, Mapping) for table in tables):
        raise MechheadsError(
            f"Task {task} has {len(rows)} prompts; 'spans' must be a table such as "
            '{"A": 3, "B": [4, 5]}, or a list with one per prompt.'
        )
    found = []
    for i, (row, table) in enumerate(zip(rows, tables, strict=True), start=1):
        marked = []
        for name, value in table.items():
            what = f"Prompt {i} of {task}: the span {name!r}"
            value = value.tolist() if hasattr(value, "tolist") else value
            positions = [value] if isinstance(value, int) else value
            if not _are_positions(positions, len(row)):
                raise MechheadsError(
                    f"{what} is {shown(value)}, expected positions from 0 to {len(row) - 1}, "
                    "such as 3 or [4, 5]."
                )
            marked += [_span(name, at, at + 1, what) for at in positions]
        found.append(tuple(sorted(marked, key=lambda span: span.begin)))
    return found


def _span(name: Any, begin: int, end: int, what: str) -> Span:
    try:
        return Span(str(name), begin, end)
    except MechheadsError as error:
        raise MechheadsError(f"{what} cannot be used. {error}") from None


def _are_positions(values: Any, n: int) -> bool:
    """Whether these are one or more whole numbers from 0 to n - 1."""
    return (
        isinstance(values, list | tuple)
        and len(values) > 0
        and all(isinstance(i, int) and not isinstance(i, bool) and 0 <= i < n for i in values)
    )


def _metric(pairs: Iterable[Pair]) -> str:
    """The metric for pairs that name none."""
    return "logit_diff" if all(pair.wrong for pair in pairs) else "logprob"


def _empty(record: Mapping[str, Any], key: str) -> bool:
    """Whether a field is missing, null, or an empty cell of a frame."""
    value = record.get(key)
    return value is None or (isinstance(value, float) and value != value)


def _text(value: Any, key: str, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise MechheadsError(f"{where}: {key!r} must be non-empty text, got {shown(value)}.")
    return checked_text(value, key, where)


def checked_text(text: str, key: str, where: str) -> str:
    """The text; an error if it has half a character, which JSON may hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise MechheadsError(f"{where}: {key!r} has an unpaired surrogate.") from None
    return text


def _texts(value: Any, key: str, where: str) -> tuple[str, ...]:
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list | tuple) or not values:
        raise MechheadsError(
            f"{where}: {key!r} must be text or a list of texts, got {shown(value)}."
        )
    return tuple(dict.fromkeys(_text(v, key, where) for v in values))


def _example() -> str:
    return '{"clean": ..., "corrupt": ..., "answer": ..., "wrong": ...}'
