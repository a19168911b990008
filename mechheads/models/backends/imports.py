"""Imports TransformerLens and transformers without libraries that only their other parts need.

TransformerLens imports pandas, datasets and (if installed) bitsandbytes at its top, transformers
imports scipy's solvers: as many seconds as torch takes, for nothing that we call. While
`lean_imports` is active,

1. an import that `LATER` names gives a stand-in to the importing module, and to no other;
2. a stand-in imports the real thing when it is called, or asked for an attribute. `isinstance` is
   false as long as nobody has imported the real class, since nothing can be an instance of it.

So TransformerLens's functions work as before, `sys.modules` holds no stand-in, and whoever imports
datasets gets datasets. importlib.util.LazyLoader is not enough: `from datasets import Dataset`
loads such a module at once.
"""

import builtins
import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import find_spec
from typing import Any, Union

from mechheads.packages import no_garbage_collection

# What every model needs; transformers reads its parts when they are asked for.
LIBRARIES = ("torch", "transformers", "transformers.modeling_utils", "transformer_lens")
# Who imports what only when it is needed: packages, with all of their modules.
LATER = {
    "transformer_lens": ("bitsandbytes", "datasets", "pandas"),
    "transformers.loss": ("scipy",),
}
_one_at_a_time = threading.RLock()


def import_libraries() -> None:
    """Import torch, transformers and TransformerLens: about 2 CPU seconds."""
    if not set(LIBRARIES) <= set(sys.modules):
        with lean_imports():
            for name in LIBRARIES:
                import_module(name)


def has_hooked_transformer() -> bool:
    """Whether this TransformerLens has HookedTransformer; looks for its file without importing."""
    package = find_spec("transformer_lens")
    places = None if package is None else package.submodule_search_locations
    name = "transformer_lens.HookedTransformer"
    return places is not None and PathFinder.find_spec(name, places) is not None


@contextlib.contextmanager
def lean_imports() -> Iterator[None]:
    """While active, imports that `LATER` names give stand-ins; garbage collection is paused."""
    with _one_at_a_time, no_garbage_collection():
        if _active():
            yield
            return
        lean = LeanImport(builtins.__import__)
        builtins.__import__ = lean
        try:
            yield
        finally:
            lean.is_on = False
            if builtins.__import__ is lean:
                builtins.__import__ = lean.real


class LeanImport:
    """Takes the place of `__import__`: a stand-in for what `LATER` names, else the real thing."""

    def __init__(self, real: Callable[..., Any]) -> None:
        """Pass other imports on to the real `__import__`."""
        self.real = real
        self.is_on = True

    def __call__(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        """The module, as `__import__` returns it."""
        importer = (globals or {}).get("__name__") or ""
        if self.is_on and level == 0 and name not in sys.modules and _is_later(importer, name):
            return StandIn(name if fromlist else name.partition(".")[0])
        return self.real(name, globals, locals, fromlist, level)


class StandIn:
    """A module, or a class or function in it, that is imported when it is used."""

    def __init__(self, module: str, path: tuple[str, ...] = ()) -> None:
        """The path leads from the module to the thing; it is empty for the module itself."""
        self._module, self._path = module, path

    def _real(self) -> Any:
        return reduce(getattr, self._path, import_module(self._module))

    def __getattr__(self, name: str) -> Any:
        """The real thing's attribute; one more stand-in while the libraries are imported."""
        if not _active():
            return getattr(self._real(), name)
        if name.startswith("__"):  # typing asks classes for these
            raise AttributeError(name)
        return StandIn(self._module, (*self._path, name))

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Call the real thing."""
        return self._real()(*args, **options)

    def __instancecheck__(self, value: Any) -> bool:
        """Whether isinstance(value, the real class)."""
        return self._module in sys.modules and isinstance(value, self._real())

    def __subclasscheck__(self, kind: type) -> bool:
        """Whether issubclass(kind, the real class)."""
        return self._module in sys.modules and issubclass(kind, self._real())

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[Any, ...]:
        """A subclass has the real class as its base."""
        return (self._real(),)

    def __or__(self, other: Any) -> Any:
        """As in annotations."""
        return Union[self, other]  # noqa: UP007 - `|` is defined by this

    def __ror__(self, other: Any) -> Any:
        """As in annotations."""
        return Union[other, self]  # noqa: UP007

    def __repr__(self) -> str:
        """Its name, and that nobody has needed it yet."""
        return f"<{'.'.join((self._module, *self._path))}, imported when it is used>"


def _active() -> bool:
    return isinstance(builtins.__import__, LeanImport)


def _is_later(importer: str, name: str) -> bool:
    package = name.partition(".")[0]
    return any(
        package in names and f"{importer}.".startswith(f"{prefix}.")
        for prefix, names in LATER.items()
    )
