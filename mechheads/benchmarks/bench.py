"""The whole benchmark: check, time, print."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from mechheads.errors import MechheadsError, unknown
from mechheads.jobs.run import Finished, print_json
from mechheads.models.untrained import SHAPES
from mechheads.options import check_least, read_list

if TYPE_CHECKING:
    from .timings import Timing

THREADS = 1024  # more would only wait for each other
TITLES = ("threads", "theirs, s", "ours, s", "ratio", "floor, s", "ours / floor", "difference")


def run_bench(given: Mapping[str, Any]) -> Finished:
    """Time every shape with every number of threads, a sweep or the start; or judge methods."""
    rows, length, loops, sweep = (given[name] for name in ("rows", "length", "loops", "sweep"))
    names = read_list(given["shape"], str, "--shape")
    threads = read_list(given["threads"], int, "--threads")
    positions = read_list(given["first"], int, "--first")
    for name in names:
        if name not in SHAPES:
            raise unknown("shape", name, SHAPES)
    if max(threads) > THREADS:
        raise MechheadsError(f"--threads takes up to {THREADS}, got {max(threads)}.")
    sizes = {"--threads": (min(threads), 1), "--rows": (rows, 1)}
    sizes |= {"--loops": (loops, 0), "--sweep": (sweep, 0)}
    for flag, (size, least) in sizes.items():
        check_least(flag, size, least)
    if not 2 <= length <= 64:
        raise MechheadsError(f"--length takes 2 to 64 tokens, got {length}.")
    for position in positions:
        if not 1 <= position < length:
            raise MechheadsError(
                f"--first takes 1 to {length - 1} with prompts of {length} tokens, got {position}."
            )
    if given["known"]:
        return _known(given)
    if given["startup"]:
        return _startup(given)
    if given["estimate"]:
        return _estimate(given)
    if sweep:
        return _scaling(sweep, given)
    from mechheads.models.devices import keep_freed_memory

    from .timings import compare

    keep_freed_memory()
    found: list[Timing] = []
    for name in names:
        for count in threads:
            some = {"rows": rows, "length": length, "loops": loops, "quiet": given["quiet"]}
            some["backend"] = given["backend"]
            timings = list(compare(name, count, positions, **some))
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


def _scaling(cells: int, given: Mapping[str, Any]) -> Finished:
    from .scaling import compare_workers

    found = compare_workers(cells, given["quiet"], given["backend"])
    if given["json"]:
        sentence = f"Two workers are {found.ratio:.2f} times as fast as one."
        print_json("bench", asdict(found) | {"ratio": found.ratio}, [], None, sentence)
    else:
        print(found.table)
    return Finished(found, None)


def print_timings(timings: "Sequence[Timing]") -> None:
    """Print a line per comparison: seconds, speedup, and the lower bound on the time."""
    from rich.table import Table

    from mechheads.cli.console import print_plain

    table = Table("shape", "what", box=None, pad_edge=False)
    for title in TITLES:
        table.add_column(title, justify="right")
    for t in timings:
        counted = not math.isnan(t.floor)
        table.add_row(
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
    print_plain(table)
