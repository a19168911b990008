"""Spans: named parts of a prompt, such as the indirect object, whatever the template.

What counts in a prompt are its parts and not their positions (Haklay et al. 2025,
arXiv:2502.04577, call this a schema). A task marks them when it fills a template; `positions` finds
their tokens. END, the last token of the prompt, is a span of every prompt and is never marked.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from string import Formatter

from mechheads.errors import MechheadsError

END = "END"


@dataclass(frozen=True)
class Span:
    """Characters [begin, end) of the clean prompt; of a prompt of token ids, tokens [begin, end).

    Spans of one prompt with the same name are one: all their tokens together.
    """

    name: str
    begin: int
    end: int

    def __post_init__(self) -> None:
        """Raise if it cannot be a part of a prompt."""
        if self.name == END:
            raise MechheadsError(f"{END} is the last token of every prompt and is not marked.")
        if not self.name or not 0 <= self.begin < self.end:
            raise MechheadsError(
                f"The span {self.name!r} is [{self.begin}, {self.end}], expected a name, and a "
                "begin from 0 on that is less than its end."
            )

    def moved(self, by: int) -> "Span":
        """The same span after `by` more characters."""
        return replace(self, begin=self.begin + by, end=self.end + by)


def fill(
    template: str, values: Mapping[str, object], names: Mapping[str, str] | None = None
) -> tuple[str, tuple[Span, ...]]:
    """The filled template, and the spans of its fields.

    `names` says which fields to mark, as what, and in which order the spans are listed; without
    it, all fields are marked by their own names, in reading order. A bare {} is the field "".

    >>> fill("{X} met {Y}", {"X": "Mary", "Y": "John"}, {"X": "IO"})
    ('Mary met John', (Span(name='IO', begin=0, end=4),))
    """
    text, spans = "", []
    for literal, field, spec, _ in Formatter().parse(template):
        text += literal
        if field is None:
            continue
        value = format(values[field], spec or "")
        if name := field if names is None else names.get(field):
            spans.append(Span(name, len(text), len(text) + len(value)))
        text += value
    if names is not None:
        order = list(names.values())
        spans.sort(key=lambda span: order.index(span.name))
    return text, tuple(spans)
