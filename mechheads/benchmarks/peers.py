"""The same work done by what people would use instead, side by side.

1. A folder with a model of random weights and random prompts is handed to every side.
2. Each side is a process of its own for every measurement: ours, and a plain script per peer
   (`mechheads/models/peers`), run by the first Python that has the peer: this one, or those given.
3. All sides must find the same numbers. Where a peer is slow it is timed on a part of the work, and
   its time is scaled up; `how` says so.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mechheads.errors import MechheadsError
from mechheads.models import peers as scripts
from mechheads.models.untrained import SHAPES
from mechheads.progress import say

from .timings import GATED
from .workload import Workload

MEASUREMENTS = ("patch", "attribution", "discover", "gating")
OURS = "mechheads"
VERSIONS = """
import importlib.metadata as m, json
every = {name: None for name in ("transformer-lens", "nnsight")}
for name in every:
    try:
        every[name] = m.version(name)
    except m.PackageNotFoundError:
        pass
print(json.dumps(every))
"""


@dataclass(frozen=True)
class Peer:
    """A package whose version begins with `major`, the script that uses it, and what that does."""

    name: str
    package: str
    major: str
    script: str
    measures: tuple[str, ...] = MEASUREMENTS


PEERS = (
    Peer("TransformerLens 3", "transformer-lens", "3.", "lens.py"),
    Peer("TransformerLens 4", "transformer-lens", "4.", "lens.py"),
    Peer("nnsight", "nnsight", "", "nnsight_batched.py", ("patch", "attribution")),
)


@dataclass(frozen=True)
class PeerTiming:
    """What one side takes for a measurement; seconds are None if it could not be measured.

    `ratio` is how many times longer than ours it takes, `difference` the largest one from our
    numbers, relative to the largest of them. `memory` is the most that was in use, and `loaded`
    what was before measuring, in MB.
    """

    shape: str
    threads: int
    measurement: str
    peer: str
    how: str
    version: str = ""
    python: str = ""
    torch: str = ""
    transformers: str = ""
    seconds: float | None = None
    ratio: float | None = None
    difference: float | None = None
    memory: float | None = None
    loaded: float | None = None


def compare_peers(
    shape: str,
    threads: int,
    pythons: Mapping[str, str],
    *,
    rows: int = 16,
    length: int = 16,
    first: int = 10,
    loops: int = 24,
    backend: str | None = None,
    quiet: bool = False,
) -> Iterator[PeerTiming]:
    """Every measurement on a shape of GPT-2's architecture: ours, then each peer.

    `pythons` are what `find_pythons` gives.
    """
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        Workload(SHAPES[shape], threads, rows, length, first, loops).write(folder)
        for name in MEASUREMENTS:
            if name == "gating" and shape not in GATED:
                continue
            say(f"{shape}, {threads} threads: {name} ...", quiet)
            here = (shape, threads, name)
            ours = run_ours(folder, name, threads, backend)
            yield _timing(here, OURS, OURS, ours, ours)
            for peer in PEERS:
                if name not in peer.measures:
                    continue
                if peer.name not in pythons:
                    yield PeerTiming(
                        *here, peer.name, "not installed; give --with a Python that has it"
                    )
                    continue
                yield _measured(here, peer, pythons[peer.name], folder, ours)


def _measured(
    here: tuple[str, int, str], peer: Peer, python: str, folder: Path, ours: Mapping[str, Any]
) -> PeerTiming:
    script = Path(scripts.__file__).with_name(peer.script)
    # Their own environment: neither our modules nor our settings.
    hidden = ("PYTHONPATH", "GOMP_SPINCOUNT")
    env = {key: value for key, value in os.environ.items() if key not in hidden}
    try:
        found = run_side([python, str(script), str(folder), here[2]], here[1], env)
    except MechheadsError as error:
        return PeerTiming(*here, peer.name, f"failed: {error}")
    return _timing(here, peer.name, peer.package, found, ours)


def _timing(
    here: tuple[str, int, str],
    peer: str,
    package: str,
    found: Mapping[str, Any],
    ours: Mapping[str, Any],
) -> PeerTiming:
    numbers = ("seconds", "memory", "loaded")
    return PeerTiming(
        *here,
        peer,
        found["how"],
        found[package],
        *(found[name] for name in ("python", "torch", "transformers")),
        ratio=found["seconds"] / ours["seconds"],
        difference=difference(found["values"], ours["values"]),
        **{name: found[name] for name in numbers},
    )


def difference(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> float:
    """The largest difference of any number, relative to the largest of its kind."""
    return max(
        max(abs(value - ours[kind][name]) for name, value in values.items())
        / max(map(abs, ours[kind].values()))
        for kind, values in theirs.items()
    )


def run_ours(folder: Path, name: str, threads: int, backend: str | None) -> dict[str, Any]:
    """One of our measurements, in a process of its own."""
    words = [sys.executable, "-m", "mechheads.benchmarks.ours", str(folder), name]
    return run_side([*words, *([] if backend is None else [backend])], threads, os.environ)


def run_side(words: Sequence[str], threads: int, env: Mapping[str, str]) -> dict[str, Any]:
    """What a side prints, with so many threads."""
    every = {**env, "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=every)
    if done.returncode:
        raise MechheadsError((done.stderr.strip().splitlines() or ["no message"])[-1])
    return json.loads(done.stdout.splitlines()[-1])


def find_pythons(
    given: Sequence[str], versions: Callable[[str], Mapping[str, str | None]] | None = None
) -> dict[str, str]:
    """For every peer the first Python that has it: this one, or one of those given."""
    look, found = versions or versions_of, {}
    for python in (sys.executable, *given):
        has = look(python)
        for peer in PEERS:
            version = has[peer.package]
            if version is not None and version.startswith(peer.major):
                found.setdefault(peer.name, python)
    return found


def versions_of(python: str) -> dict[str, str | None]:
    """The versions of the packages that a Python has; an error if it is none."""
    try:
        return run_side([python, "-c", VERSIONS], 1, os.environ)
    except (OSError, ValueError, IndexError, MechheadsError) as error:
        reason = getattr(error, "strerror", None) or "it is no Python interpreter"
        raise MechheadsError(
            f"--with takes Python interpreters, separated by commas; {python!r} cannot be used "
            f"({reason}). Give the path of one, such as .venv/bin/python."
        ) from None
