"""Extracts an answer from text and compares it as a value, not as a string."""

import logging
import re
import threading
from typing import Any

from .text import normalised

NUMBER = re.compile(r"(?<![\w.)])-?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:\s*/\s*\d+)?")
WRAPPED = re.compile(r"\\(?:text|textbf|textit|mathrm|mbox)\{([^{}]*)\}")
# A digit, LaTeX or an operator; a hyphen inside a word does not count.
MATHS = re.compile(r"[\d\\^+*/=]|(?<![A-Za-z]{2})-")
# Powers of powers, long exponents and factorials of large numbers would take forever.
ENDLESS = re.compile(r"(?:\^|\*\*)[\s{(]*(?:\d+\s*(?:\^|\*\*|!)|\d{5})|(?:\d{5}|!)[\s})]*!")
SECONDS = 5


def read_answer(text: str) -> str:
    r"""The contents of the last \boxed{}, else the last expression or number, else all text."""
    boxed = _boxed(text)
    if boxed is not None:
        return boxed
    if found := _parsed(text):
        return str(found[-1])
    numbers = NUMBER.findall(text)
    return numbers[-1].rstrip(",") if numbers else text.strip()


def is_right(said: str, answers: tuple[str, ...]) -> bool:
    """Whether the answer matches a right one: by value if that is maths, else by its words."""
    return any(_fits(said, WRAPPED.sub(r"\1", right)) for right in answers)


def same_value(one: str, two: str) -> bool:
    """Whether two numbers, fractions or LaTeX expressions are equal."""
    from math_verify import verify

    one, two = (text.strip().strip("$") for text in (one, two))
    if "".join(one.split()) == "".join(two.split()):
        return True
    found, gold = _parsed(f"${one}$"), _parsed(f"${two}$")
    return bool(found and gold) and verify(
        gold, found, timeout_seconds=_seconds(), raise_on_error=False
    )


def _fits(said: str, right: str) -> bool:
    if MATHS.search(right):
        return same_value(WRAPPED.sub(r"\1", read_answer(said)), right)
    boxed = _boxed(said)
    return normalised(right) == normalised(said if boxed is None else WRAPPED.sub(r"\1", boxed))


def _parsed(text: str) -> list[Any]:
    """What math_verify finds in the text; nothing if evaluating it may never end."""
    from math_verify import parse

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    if ENDLESS.search(text):
        return []
    seconds: Any = _seconds()
    return parse(text, parsing_timeout=seconds, raise_on_error=False)


def _seconds() -> int | None:
    """The timeout; None outside the main thread, since math_verify's timeouts are signals."""
    return SECONDS if threading.current_thread() is threading.main_thread() else None


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
