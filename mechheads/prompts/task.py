"""A task as a plugin: a named maker of pairs, and the metric that judges them."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mechheads.errors import MechheadsError, suggest
from mechheads.options import flag_of, read_value

from .pairs import Maker


@dataclass(frozen=True)
class Task:
    """A named task: `maker(lexicon, **options)` makes its pairs, `metric` judges them.

    `function` is the cognitive function that the task exercises, if it has a name.
    """

    name: str
    maker: Callable[..., Maker]
    metric: str
    function: str | None = None

    @property
    def summary(self) -> str:
        """The first line of the task module's docstring."""
        return (inspect.getdoc(inspect.getmodule(self.maker)) or "").partition("\n")[0]

    @property
    def options(self) -> dict[str, inspect.Parameter]:
        """The task's own options: the keyword-only arguments of `maker`."""
        parameters = inspect.signature(self.maker).parameters.values()
        return {p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY}

    def read_options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The given options, with text from a command line converted to the task's types."""
        for name in given:
            if name not in self.options:
                own = ", ".join(flag_of(o) for o in self.options) or "none"
                raise MechheadsError(
                    f"unknown flag {flag_of(name)}: task {self.name} has no such option "
                    f"(its options: {own}).{suggest(name, self.options)}"
                )
        return {
            name: read_value(value, self.options[name].annotation, flag_of(name))
            for name, value in given.items()
        }
