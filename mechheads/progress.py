"""Notices and progress on stderr: one bar per command, wherever someone may look.

1. `bar` counts the work of one function.
2. `stages` is the bar of a whole command: named stages, with weights that say how long each takes.
   Bars and stages made inside a stage draw nothing: they fill that stage.
3. It is drawn in a terminal and in a notebook. In any other place (a log of Slurm or nohup) it is
   a line every 30 seconds, so short runs are silent. --quiet shows nothing; --progress shows also
   the notices and the start of every stage in a log.
"""

import importlib.util
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Protocol, runtime_checkable

from tqdm import tqdm
from tqdm.asyncio import tqdm_asyncio

EVERY = 30.0  # seconds between two lines in a log
COUNTS = "{l_bar}{bar}| {n:.0f}/{total:.0f} [{elapsed}<{remaining}{postfix}]"
PERCENT = "{l_bar}{bar}| {elapsed}<{remaining}{postfix}"

Number = float | int

clock: Callable[[], float] = time.monotonic
_forced: ContextVar[bool] = ContextVar("forced", default=False)
_stage: ContextVar["Stage | None"] = ContextVar("stage", default=None)


@contextmanager
def forced(on: bool = True) -> Iterator[None]:
    """Show notices and the start of every stage also in a log: what --progress does."""
    token = _forced.set(on)
    try:
        yield
    finally:
        _forced.reset(token)


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    if "ipykernel" not in sys.modules or "IPython" not in sys.modules:
        return False
    return getattr(sys.modules["IPython"].get_ipython(), "kernel", None) is not None


def drawn(quiet: bool = False) -> bool:
    """Whether bars are drawn: in a terminal or a notebook, unless --quiet was given."""
    return not quiet and (sys.stderr.isatty() or in_notebook())


def watched(quiet: bool = False) -> bool:
    """Whether someone reads notices: in a terminal or with --progress, unless quiet."""
    return not quiet and (sys.stderr.isatty() or _forced.get())


def say(text: str, quiet: bool = False) -> None:
    """Print a line about what is being done, above the bar if there is one."""
    if watched(quiet):
        tqdm.write(text, file=sys.stderr)


class Bar(tqdm_asyncio):
    """A progress bar class for libraries that create their own bars."""

    def __init__(self, *args: Any, **options: Any) -> None:
        """Like tqdm's, but disabled if nobody is watching."""
        options.pop("name", None)
        quiet = bool(options.get("disable"))
        super().__init__(*args, **(options | {"disable": not drawn(quiet), "leave": False}))


class QuietBar(Bar):
    """The same with --quiet: never shown."""

    def __init__(self, *args: Any, **options: Any) -> None:
        """Like tqdm's, but disabled."""
        super().__init__(*args, **(options | {"disable": True}))


@runtime_checkable
class Display(Protocol):
    """Where progress goes: `show` gets the units done and the names of the running stages."""

    def show(self, done: Number, names: Sequence[str]) -> None: ...  # noqa: D102
    def note(self, values: Mapping[str, Any], refresh: bool) -> None: ...  # noqa: D102
    def close(self) -> None: ...  # noqa: D102


class Progress:
    """Work done, in units of any size; it never goes back."""

    def __init__(self, total: Number, display: Display, initial: Number = 0) -> None:
        """Nothing is shown before the first update."""
        self.n, self.total, self.display = float(initial), float(total), display

    def __enter__(self) -> Any:
        """For `with`."""
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the bar."""
        self.display.close()

    def update(self, n: Number = 1) -> None:
        """Some more units are done."""
        self.reach(self.n + n)

    def reach(self, n: Number, names: Sequence[str] = ()) -> None:
        """So many units are done in all; the names are those of the running stages."""
        self.n = min(max(self.n, n), max(self.n, self.total))
        self.display.show(self.n, names)

    def set_postfix(
        self, values: Mapping[str, Any] | None = None, refresh: bool = True, **more: Any
    ) -> None:
        """Values to show behind the bar."""
        self.display.note({**(values or {}), **more}, refresh)

    @contextmanager
    def within(self, size: Number = 1, name: str = "") -> Iterator["Stage"]:
        """What runs inside fills the next units of this bar."""
        stage = Stage(self, size, name)
        token = _stage.set(stage)
        if size:
            self.reach(self.n, stage.names())
        try:
            yield stage
        finally:
            _stage.reset(token)

    @contextmanager
    def part(self, size: Number = 1, name: str = "") -> Iterator[None]:
        """The same, and at the end all of these units are done, unless there was an error."""
        with self.within(size, name) as stage:
            yield
        if size:
            self.reach(stage.end, stage.names())


class Stages(Progress):
    """The bar of a command."""

    def __init__(self, weights: Mapping[str, Number], display: Display) -> None:
        """A weight is how long a stage takes, in any unit."""
        super().__init__(sum(weights.values()), display)
        self.weights = weights

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Run one of the stages."""
        with self.part(self.weights[name], name):
            yield


class Stage:
    """A running part of a bar. One bar at a time fills it; bars inside that bar do nothing."""

    def __init__(self, whole: Progress, size: Number, name: str) -> None:
        """It begins where the bar is now."""
        self.whole, self.end, self.name, self.taken = whole, whole.n + size, name, False

    def names(self, inner: Sequence[str] = ()) -> tuple[str, ...]:
        """Its own name, and those of the stages inside it."""
        return (*([self.name] if self.name else []), *inner)


class Filling:
    """A display inside a stage: fills what is left of it."""

    def __init__(self, stage: Stage, total: Number, initial: Number) -> None:
        """The stage is taken until this is closed."""
        self.stage, self.initial, self.span = stage, initial, total - initial
        self.start = stage.whole.n
        stage.taken = True

    def show(self, done: Number, names: Sequence[str]) -> None:
        """Move the bar around the stage."""
        share = (done - self.initial) / self.span if self.span > 0 else 0.0
        at = self.start + share * (self.stage.end - self.start)
        self.stage.whole.reach(min(at, self.stage.end), self.stage.names(names))

    def note(self, values: Mapping[str, Any], refresh: bool) -> None:
        """Show values behind the bar around the stage."""
        self.stage.whole.set_postfix(values, refresh)

    def close(self) -> None:
        """The next bar may fill the rest of the stage."""
        self.stage.taken = False


class Hidden:
    """Shows nothing."""

    def show(self, done: Number, names: Sequence[str]) -> None:
        """Nothing."""

    def note(self, values: Mapping[str, Any], refresh: bool) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class Drawn:
    """A bar of tqdm: in a notebook its widget if ipywidgets is installed, else text."""

    def __init__(self, total: Number, title: str, initial: Number, options: Any) -> None:
        """The bar disappears when it is closed."""
        self.names: Sequence[str] = ()
        self.title = [] if "bar_format" in options else [title]  # stages say enough
        options = options if "unit" in options else {"bar_format": COUNTS, **options}
        self.bar = _kind()(total=total, desc=title, initial=initial, leave=False, **options)

    def show(self, done: Number, names: Sequence[str]) -> None:
        """Move the bar, and name the running stages."""
        if names and names != self.names:
            self.names = names
            self.bar.set_postfix_str("", refresh=False)
            self.bar.set_description(", ".join([*self.title, *names]))
        self.bar.update(done - self.bar.n)

    def note(self, values: Mapping[str, Any], refresh: bool) -> None:
        """Show values behind the bar."""
        self.bar.set_postfix(values, refresh=refresh)

    def close(self) -> None:
        """Remove the bar."""
        self.bar.close()


class Lines:
    """For a log: a line every 30 seconds; with --progress also one when a stage begins."""

    def __init__(self, total: Number, title: str, initial: Number) -> None:
        """The first line comes after 30 seconds."""
        self.total, self.title, self.initial = total, title, initial
        self.begun = self.said = clock()
        self.names: Sequence[str] = ()

    def show(self, done: Number, names: Sequence[str]) -> None:
        """Write a line if it is time to."""
        names = tuple(names)
        begins = _forced.get() and names != tuple(self.names)[: len(names)]
        now, self.names = clock(), names
        if now - self.said < EVERY and not begins:
            return
        self.said = now
        with suppress(OSError):  # a full disk must not end the run
            print(self.line(done, now - self.begun), file=sys.stderr, flush=True)

    def line(self, done: Number, seconds: Number) -> str:
        """Discover: Ranking heads, 43 %, 1 min 20 s, about 2 min left."""
        head = f"{self.title}: {', '.join(self.names)}" if self.names else self.title
        share = done / self.total if self.total else 1.0
        words = [head, f"{int(100 * share + 1e-9)} %", duration(seconds)]
        if seconds and self.initial < done < self.total:
            left = seconds * (self.total - done) / (done - self.initial)
            words.append(f"about {duration(left, rough=True)} left")
        return ", ".join(words)

    def note(self, values: Mapping[str, Any], refresh: bool) -> None:
        """Nothing: the tables of the run have these values."""

    def close(self) -> None:
        """Nothing is left to remove."""


def duration(seconds: Number, rough: bool = False) -> str:
    """45 s, 1 min 20 s, 2 h 5 min; rough: 2 min instead of 1 min 50 s."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        minutes, rest = (round(whole / 60), 0) if rough else divmod(whole, 60)
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(round(whole / 60), 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def bar(
    total: Number, description: str, quiet: bool = False, *, initial: Number = 0, **options: Any
) -> Progress:
    """Progress of one function: a bar of its own, or a share of the stage it is called in."""
    display = _display(total, description, quiet, initial, options)
    return Progress(total, display, initial)


def stages(title: str, weights: Mapping[str, Number], quiet: bool = False) -> Stages:
    """Progress of a command, by stages in the order in which they run.

    >>> from mechheads.progress import bar, stages
    >>> with stages("discover", {"Ranking heads": 2, "Curve": 1}, quiet=True) as progress:
    ...     with progress.stage("Ranking heads"), bar(32, "Heads") as heads:
    ...         heads.update(16)
    ...         progress.n
    1.0
    """
    options = {"bar_format": PERCENT, "smoothing": 0}
    return Stages(weights, _display(sum(weights.values()), title, quiet, 0, options))


def _display(
    total: Number, title: str, quiet: bool, initial: Number, options: Mapping[str, Any]
) -> Display:
    stage = _stage.get()
    if stage is not None:
        return Hidden() if stage.taken else Filling(stage, total, initial)
    if quiet:
        return Hidden()
    return Drawn(total, title, initial, options) if drawn() else Lines(total, title, initial)


def _kind() -> type[tqdm]:
    """The class of bar for this place; we ask for ipywidgets ourselves, as tqdm would warn."""
    if in_notebook() and importlib.util.find_spec("ipywidgets"):
        from tqdm import notebook

        return notebook.tqdm
    return tqdm
