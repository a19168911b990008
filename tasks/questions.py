"""Questions with free-form answers, from a user's file or a built-in task.

{"question": "What is 2 + 3?", "answer": "5", "context": "Think.", "function": "Math Calculation"}

One JSON object per line; `answer` may be a list of right answers; `context` and `function` are
optional. CogQA's own files are read as they are: each holds questions split into sub-questions, and
a prompt is the main question, the earlier sub-questions with their answers, and the sub-question.
"""

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mechheads.errors import MechheadsError, shown
from mechheads.options import read_input
from mechheads.prompts import Question, Questions

from .files import CHOICES, checked_text
from .registry import TASKS, is_file, make

SKILL = "cognitive_skill"
LARGEST = 1e300  # of a number; infinity and NaN are none
EXAMPLE = '{"question": "...", "answer": "..."}'


def make_questions(
    task: str,
    model: Any,
    *,
    n: int | None = None,
    seed: int = 0,
    split: str = "test",
    **options: Any,
) -> list[Questions]:
    """n questions of a built-in task (None: 32), or n of each function in a file (None: all)."""
    if not is_file(task):
        made = make(task, model, n=n, seed=seed, split=split, or_all=True, **options)
        function = TASKS[task].function or task
        items = tuple(
            Question(pair.clean, tuple(a.strip() for a in pair.answers), function, pair.group)
            for pair in made.pairs
        )
        return [Questions(function, items, made)]
    by_function: dict[str, list[Question]] = {}
    for question in from_file(task):
        by_function.setdefault(question.function, []).append(question)
    found = []
    for function, listed in sorted(by_function.items()):
        different = list(dict.fromkeys(listed))
        order = random.Random(f"{function}/{seed}").sample(different, len(different))
        found.append(Questions(function, tuple(order[:n])))
    return found


def from_file(path: str | Path) -> list[Question]:
    """The questions of a JSONL file or of CogQA's JSON; errors name the line or item."""
    path = read_input(path, "the question file")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise MechheadsError(f"No question file {path}. Give an existing .jsonl file.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise MechheadsError(
            f"Cannot read {path} ({error}). Give a UTF-8 text file with one object per line."
        ) from None
    if text.lstrip().startswith("["):
        found = _cogqa(_parsed(text, str(path)), path)
    else:
        found = [
            _question(_parsed(line, where := f"{path}, line {i}"), where, path.stem)
            for i, line in enumerate(text.split("\n"), start=1)
            if line.strip()
        ]
    if not found:
        raise MechheadsError(f"{path} is empty. Give one object per line: {EXAMPLE}.")
    return found


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # also a number of thousands of digits
        raise MechheadsError(f"{where} is not JSON ({error}). Write it as {EXAMPLE}.") from None


def _question(record: Any, where: str, name: str) -> Question:
    if not isinstance(record, Mapping):
        raise MechheadsError(f"{where} is not an object. Write it as {EXAMPLE}.")
    # MATH-500 and similar sets call questions problems.
    asked = _text(record.get("question", record.get("problem")), "question", where)
    answer = record.get("answer")
    answers = answer if isinstance(answer, list) else [answer]
    said = tuple(_text(a, "answer", where).strip() for a in answers)
    if not asked.strip() or not said or not all(said):
        what = "answer" if asked.strip() else "question"
        raise MechheadsError(f"{where} has no {what}. Write it as {EXAMPLE}.")
    if len(said) > CHOICES:
        raise MechheadsError(f"{where} has {len(said):,} answers; at most {CHOICES} are possible.")
    context = _text(record.get("context") or "", "context", where)
    before = f"{context}\n\n" if context else ""
    function = _text(record.get("function") or name, "function", where)
    return Question(f"{before}Question: {asked}\nAnswer:", said, function, asked)


def _text(value: Any, what: str, where: str) -> str:
    """A text or a number as text; empty if there is none."""
    if value is None:
        return ""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (isinstance(value, str) or (number and abs(value) <= LARGEST)):
        raise MechheadsError(f"{where}: the {what} is {shown(value)}, expected text or a number.")
    return checked_text(str(value), what, where)


def _cogqa(items: Any, path: Path) -> list[Question]:
    found = []
    for i, item in enumerate(items, start=1):
        where = f"{path}, item {i}"
        try:
            parts: Sequence[Any] = item["generated"]
            steps = [
                tuple(_text(p[key], key, where) for key in ("subquestion", "answer", SKILL))
                for p in parts
            ]
            main = _text(item["question"], "question", where)
        except (KeyError, TypeError) as error:
            raise MechheadsError(
                f"{where} is not in CogQA's format ({error!r} is missing). Give a JSONL file, one "
                f"object per line: {EXAMPLE}."
            ) from None
        before = main
        for asked, answer, skill in steps:
            prompt = f"{before}\n\nQuestion: {asked}\nAnswer:"
            if answer.strip():
                found.append(Question(prompt, (answer.strip(),), skill.strip(), main))
            before = f"{prompt} {answer.strip()}"
    return found
