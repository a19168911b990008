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

from mechheads.errors import MechheadsError
from mechheads.options import read_path
from mechheads.prompts import Question, Questions

from .registry import TASKS, is_file, make

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
    path = read_path(path, "the question file")
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
    except (json.JSONDecodeError, RecursionError) as error:
        raise MechheadsError(f"{where} is not JSON ({error}). Write it as {EXAMPLE}.") from None


def _question(record: Any, where: str, name: str) -> Question:
    if not isinstance(record, Mapping):
        raise MechheadsError(f"{where} is not an object. Write it as {EXAMPLE}.")
    # MATH-500 and similar sets call questions problems.
    asked, answer = record.get("question", record.get("problem")), record.get("answer")
    answers = [answer] if isinstance(answer, str | int | float) else answer
    if not isinstance(asked, str) or not asked.strip():
        raise MechheadsError(f"{where} has no question. Write it as {EXAMPLE}.")
    if not isinstance(answers, list) or not answers or not all(str(a).strip() for a in answers):
        raise MechheadsError(f"{where} has no answer. Write it as {EXAMPLE}.")
    context = record.get("context") or ""
    before = f"{context}\n\n" if context else ""
    return Question(
        f"{before}Question: {asked}\nAnswer:",
        tuple(str(a).strip() for a in answers),
        str(record.get("function") or name),
        asked,
    )


def _cogqa(items: Any, path: Path) -> list[Question]:
    found = []
    for i, item in enumerate(items, start=1):
        where = f"{path}, item {i}"
        try:
            parts: Sequence[Any] = item["generated"]
            steps = [
                (str(p["subquestion"]), str(p["answer"]), str(p["cognitive_skill"])) for p in parts
            ]
            main = str(item["question"])
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
