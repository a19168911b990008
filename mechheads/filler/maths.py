"""Reads an answer out of text and compares it as a value, not as letters."""

import re
from functools import lru_cache
from typing import Any, cast

from ..masking.quality import normalised

NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:\s*/\s*\d+)?")


def read_answer(text: str) -> str:
    r"""What stands in the last \boxed{}, else the last number, else all of the text."""
    boxed = _boxed(text)
    if boxed is not None:
        return boxed
    numbers = NUMBER.findall(text)
    return numbers[-1].rstrip(",") if numbers else text.strip()


def is_right(said: str, answers: tuple[str, ...]) -> bool:
    """Whether the answer has the value, or else the words, of a right one."""
    read = read_answer(said)
    return any(
        normalised(right) in (normalised(said), normalised(read))
        or (_is_maths(right) and same_value(read, right))
        for right in answers
    )


@lru_cache(maxsize=10_000)
def same_value(one: str, two: str) -> bool:
    """Whether two numbers, fractions or LaTeX expressions are equal."""
    from math_verify import parse, verify

    if one.strip() == two.strip():
        return True
    # Timeouts are off: they are signals, which only the main thread may have.
    quietly: dict[str, Any] = {"raise_on_error": False}
    gold, found = (
        parse(f"${text.strip().strip('$')}$", parsing_timeout=cast(int, None), **quietly)
        for text in (two, one)
    )
    return bool(gold and found and verify(gold, found, timeout_seconds=None, **quietly))


def _is_maths(text: str) -> bool:
    return bool(re.search(r"\d|\\", text))


def _boxed(text: str) -> str | None:
    r"""The contents of the last \boxed{...}, whose braces may nest."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth, begin = 1, start + len("\\boxed{")
    for i in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[i], 0)
        if depth == 0:
            return text[begin:i]
    return None
