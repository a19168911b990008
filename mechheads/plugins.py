"""Tables that other packages may add to: tasks, methods and metrics.

An installed package adds to a table with an entry point, in the group `mechheads.tasks`,
`mechheads.methods` or `mechheads.metrics`:

    [project.entry-points."mechheads.tasks"]
    colours = "my_package:COLOURS"

where COLOURS is a Task. A method or a metric may be a plain function. A script or notebook calls
`tasks.register`, `mechheads.register_method` or `mechheads.register_metric` instead.
"""

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from types import FunctionType
from typing import Any, Generic, TypeVar

from mechheads.errors import MechheadsError

T = TypeVar("T")


class Table(Mapping[str, T], Generic[T]):
    """Things by their `name`; those of other packages are loaded when it is first read."""

    def __init__(
        self,
        kind: str,
        of: type[T],
        items: Iterable[T],
        adopt: Callable[[str, Any], T] | None = None,
    ) -> None:
        """`kind` is what one of them is called: a task, a method, a metric.

        `adopt` makes one from a name and a plain function, for entry points that name a function.
        """
        self.kind, self.of, self.adopt = kind, of, adopt
        self._items: dict[str, T] = {}
        self._origins: dict[str, str] = {}
        self._loaded = False
        for item in items:
            self.register(item, "mechheads")

    def register(self, item: Any, origin: str = "this session", *, replace: bool = False) -> None:
        """Add one; a name can be taken only once, except with `replace`."""
        if not isinstance(item, self.of):
            raise MechheadsError(
                f"a {self.kind} must be a {self.of.__name__}, got {type(item).__name__}."
            )
        name = getattr(item, "name", "")
        if not re.fullmatch(r"[a-z][a-z0-9_]*", str(name)):
            raise MechheadsError(
                f"{name!r} cannot be the name of a {self.kind}: use lower-case letters, digits "
                "and underscores."
            )
        if name in self._items and not replace:
            raise MechheadsError(
                f"There are two {self.kind}s named {name!r}: one of {self._origins[name]}, one of "
                f"{origin}. Rename one."
            )
        self._items[name], self._origins[name] = item, origin

    @property
    def builtin(self) -> list[str]:
        """The names of our own."""
        return [name for name, origin in self._origins.items() if origin == "mechheads"]

    def __getitem__(self, name: str) -> T:
        """The one of that name."""
        return self._all()[name]

    def __iter__(self) -> Iterator[str]:
        """The names, ours first."""
        return iter(self._all())

    def __len__(self) -> int:
        """How many there are."""
        return len(self._all())

    def _all(self) -> dict[str, T]:
        if not self._loaded:
            self._loaded = True
            for point in entry_points(group=f"mechheads.{self.kind}s"):
                self._load(point)
        return self._items

    def _load(self, point: EntryPoint) -> None:
        """Add what an entry point names; one that fails is named and left out."""
        origin = point.dist.name if point.dist else point.value
        try:
            item = point.load()
            if self.adopt and isinstance(item, FunctionType):
                item = self.adopt(point.name, item)
            self.register(item, origin)
        except Exception as error:
            why = str(error) if isinstance(error, MechheadsError) else f"{error!r}"
            print(
                f"mechheads: the {self.kind} {point.name!r} of {origin} is left out: {why}",
                file=sys.stderr,
            )
