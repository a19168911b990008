"""The whole benchmark: check the flags, measure, print."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mechheads.errors import MechheadsError, unknown
from mechheads.jobs.run import Finished, print_json
from mechheads.models.untrained import SHAPES
from mechheads.options import check_least, flag_of, read_list, read_path

if TYPE_CHECKING:
    from .peers import PeerTiming
    from .sizes import Sized
    from .timings import Timing

THREADS = 1024  # more would only wait for each other
TITLES = ("threads", "theirs, s", "ours, s", "ratio", "floor, s", "ours / floor", "difference")
LIKE_GPT2 = ("gpt2", "mini")  # the architecture that the scripts of peers know
# Flags that only some of the benchmarks look at.
ONLY = {"with_": ("peers",), "record": ("peers", "size"), "shape": ("speed", "peers")}


def run_bench(given: Mapping[str, Any]) -> Finished:
    """Check all flags, and measure `what`."""
    what = given["what"]
    rows, length, loops, cells = (given[name] for name in ("rows", "length", "loops", "cells"))
    known = LIKE_GPT2 if what == "peers" else tuple(SHAPES)
    names = list(known) if given["shape"] is None else read_list(given["shape"], str, "--shape")
    threads = read_list(given["threads"], int, "--threads")
    positions = read_list(given["first"], int, "--first")
    for name in names:
        if name not in known:
            raise unknown("shape", name, known)
    if max(threads) > THREADS:
        raise MechheadsError(f"--threads takes up to {THREADS}, got {max(threads)}.")
    sizes = {"--threads": (min(threads), 1), "--rows": (rows, 1)}
    sizes |= {"--loops": (loops, 0), "--cells": (cells, 1)}
    for flag, (size, least) in sizes.items():
        check_least(flag, size, least)
    if not 2 <= length <= 64:
        raise MechheadsError(f"--length takes 2 to 64 tokens, got {length}.")
    for position in positions:
        if not 1 <= position < length:
            raise MechheadsError(
                f"--first takes 1 to {length - 1} with prompts of {length} tokens, got {position}."
            )
    for flag, takers in ONLY.items():
        if given[flag] is not None and what not in takers:
            raise MechheadsError(
                f"{flag_of(flag)} is for bench {' and '.join(takers)}, not for bench {what}."
            )
    own = {"shape": names, "threads": threads, "first": positions}
    return BENCHES[what]({**given, **own})


def _speed(given: Mapping[str, Any]) -> Finished:
    from mechheads.models.devices import keep_freed_memory

    from .timings import compare

    keep_freed_memory()
    found: list[Timing] = []
    for name in given["shape"]:
        for count in given["threads"]:
            timings = list(compare(name, count, given["first"], **_pick(given)))
            found += timings
            if not given["json"]:
                print_timings(timings)
                print(flush=True)
    if given["json"]:
        headline = {"timings": [asdict(t) | {"ratio": t.ratio} for t in found]}
        print_json("bench", headline, [], None, summary(found))
    return Finished(found, None)


def summary(timings: "Sequence[Timing]") -> str:
    """How much faster patching is than TransformerLens's loop, over all that was timed."""
    ratios = [t.ratio for t in timings if t.what.startswith("patch")]
    ends = f"{min(ratios):.1f}", f"{max(ratios):.1f}"
    return f"Patching every head is {' to '.join(dict.fromkeys(ends))} times as fast as the loop."


def _peers(given: Mapping[str, Any]) -> Finished:
    from .peers import compare_peers, find_pythons

    folder = _folder(given)
    pythons = find_pythons(read_list(given["with_"], str, "--with") if given["with_"] else [])
    found: list[PeerTiming] = []
    for name in given["shape"]:
        for count in given["threads"]:
            work = {**_pick(given), "first": given["first"][0]}
            sides = list(compare_peers(name, count, pythons, **work))
            found += sides
            if not given["json"]:
                print_sides(sides)
                print(flush=True)
    file = _record(folder, "peers.csv", [asdict(s) for s in found if s.seconds is not None])
    if given["json"]:
        times = [s.ratio for s in found if s.measurement == "patch" and s.ratio not in (None, 1.0)]
        sentence = f"Patching takes others {min(times):.1f} times as long." if times else ""
        print_json("bench", {"peers": [asdict(s) for s in found]}, [], file, sentence)
    return Finished(found, file)


def _size(given: Mapping[str, Any]) -> Finished:
    from .sizes import exponents, measure_sizes

    folder, every = _folder(given), []
    for count in given["threads"]:
        found = measure_sizes(count, backend=given["backend"], quiet=given["quiet"])
        every += found
        if not given["json"]:
            print_sizes(found)
            print(flush=True)
    file = _record(folder, "size.csv", map(asdict, every))
    if given["json"]:
        grown = [
            {"threads": count, "axis": axis, "seconds": seconds, "memory": memory}
            for count in given["threads"]
            for axis, (seconds, memory) in exponents(
                [one for one in every if one.threads == count]
            ).items()
        ]
        headline = {"sizes": [asdict(one) for one in every], "exponents": grown}
        print_json("bench", headline, [], file)
    return Finished(every, file)


def _folder(given: Mapping[str, Any]) -> Path | None:
    """Where to record, checked before anything is measured."""
    from mechheads.runs.files import prepare

    if given["record"] is None:
        return None
    try:
        return prepare(read_path(given["record"], "--record"))
    except MechheadsError as error:
        raise MechheadsError(str(error).replace("--out", "--record")) from None


def _record(folder: Path | None, name: str, rows: Any) -> Path | None:
    from .records import record

    rows = list(rows)
    return record(folder, name, rows) if folder is not None and rows else None


def _pick(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: given[name] for name in ("rows", "length", "loops", "backend", "quiet")}


def _known(given: Mapping[str, Any]) -> Finished:
    from .known import judge_methods, known_models, print_findings

    truths = known_models()
    findings = judge_methods(truths, quiet=given["quiet"])
    if given["json"]:
        cells = [{"method": v.way, "model": v.model, "heads": v.cell} for v in findings]
        missed = sum(len(v.missed) for v in findings)
        sentence = f"On {len(truths)} models, methods miss a true head {missed} times."
        print_json("bench", {"known": cells}, [], None, sentence)
    else:
        from mechheads.cli.console import print_plain

        print_findings(truths, findings, print_plain)
    return Finished(findings, None)


def _startup(given: Mapping[str, Any]) -> Finished:
    from .startup import measure_startup

    found = measure_startup(given["backend"])
    if given["json"]:
        headline = {"startup": asdict(found) | {"loaded": found.loaded}}
        print_json("bench", headline, [], None, found.sentence)
    else:
        print(found.table)
    return Finished(found, None)


def _estimate(given: Mapping[str, Any]) -> Finished:
    from .estimates import compare_estimates

    found = compare_estimates(backend=given["backend"], quiet=given["quiet"])
    if given["json"]:
        rows = [asdict(one) | {"ratio": one.ratio} for one in found.estimates]
        print_json("bench", {"estimates": rows}, [], None, found.sentence)
    else:
        print(found.table)
    return Finished(found, None)


def _sweep(given: Mapping[str, Any]) -> Finished:
    from .scaling import compare_workers

    found = compare_workers(given["cells"], given["quiet"], given["backend"])
    if given["json"]:
        sentence = f"Two workers are {found.ratio:.2f} times as fast as one."
        print_json("bench", asdict(found) | {"ratio": found.ratio}, [], None, sentence)
    else:
        print(found.table)
    return Finished(found, None)


BENCHES: Mapping[str, Callable[[Mapping[str, Any]], Finished]] = {
    "speed": _speed,
    "peers": _peers,
    "size": _size,
    "known": _known,
    "startup": _startup,
    "estimate": _estimate,
    "sweep": _sweep,
}


def print_timings(timings: "Sequence[Timing]") -> None:
    """Print a line per comparison: seconds, speedup, and the lower bound on the time."""
    rows = []
    for t in timings:
        counted = not math.isnan(t.floor)
        rows.append(
            (
                t.shape,
                t.what,
                str(t.threads),
                f"{t.theirs:.2f}",
                f"{t.ours:.2f}",
                f"{t.ratio:.1f} x",
                f"{t.floor:.2f}" if counted else "",
                f"{t.ours / t.floor:.2f}" if counted else "",
                "" if math.isnan(t.difference) else f"{t.difference:.0e}",
            )
        )
    _print(("shape", "what"), TITLES, rows)


def print_sides(sides: "Sequence[PeerTiming]") -> None:
    """Print a line per measurement and side: seconds, how many times ours, memory, difference."""
    rows = []
    for s in sides:
        named = (s.shape, str(s.threads), s.measurement, _label(s))
        numbers = ("", "", "", "")
        if None not in (s.seconds, s.ratio, s.memory, s.difference):
            numbers = (
                f"{s.seconds:.2f}",
                f"{s.ratio:.1f} x",
                f"{s.memory:.0f}",
                "" if s.ratio == 1 and not s.difference else f"{s.difference:.0e}",
            )
        rows.append((*named, *numbers, s.how))
    titles = ("seconds", "to ours", "MB", "difference", "timed on")
    _print(("shape", "threads", "measurement", "with"), titles, rows)


def _label(side: "PeerTiming") -> str:
    """The peer and its version, or the peer that is missing."""
    return f"{side.peer.split()[0]} {side.version}" if side.version else side.peer


def print_sizes(found: "Sequence[Sized]") -> None:
    """Print a line per size, and per axis how seconds and memory grow with it."""
    from .sizes import exponents

    rows = []
    for axis, powers in exponents(found).items():
        for one in found:
            if one.axis == axis:
                numbers = (f"{one.seconds:.3f}", f"{one.memory:.0f}", f"{one.added:.0f}")
                rows.append((axis, str(one.threads), str(one.size), f"{one.weights:,}", *numbers))
        shown = ["" if math.isnan(power) else f"^ {power:.2f}" for power in powers]
        rows.append(("", "", "", "", shown[0], "", shown[1]))
    titles = ("threads", "size", "weights", "seconds", "peak MB", "for patching, MB")
    _print(("doubled",), titles, rows)


def _print(left: Sequence[str], right: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.table import Table

    from mechheads.cli.console import print_plain

    table = Table(*left, box=None, pad_edge=False)
    for title in right:
        table.add_column(title, justify="right")
    for row in rows:
        table.add_row(*row)
    print_plain(table)
