"""Verb `mask`: what a model says without its most important heads, or without random ones."""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from mechheads.cli.parse import run
from mechheads.discover import notes
from mechheads.errors import MechheadsError, unknown
from mechheads.models import locate
from mechheads.options import flag_of, read_list
from mechheads.progress import say
from mechheads.prompts import check_prompts
from mechheads.runs import folder as runs
from mechheads.scoring import registry as methods

if TYPE_CHECKING:
    from mechheads.masking.experiment import Masking
    from mechheads.masking.matrix import Matrix
    from mechheads.masking.probe import Probing
    from mechheads.models.model import Model
    from mechheads.prompts import Questions
    from mechheads.prompts.partitions import Parts

PROBE, ELBOW = "probe", "elbow"
# Share of right answers of the whole model below which a run is not worth much.
WEAK = 0.3


def mask(
    *,
    tasks: str = "retrieval,knowledge_recall,math_calculation,inference",
    model: str = "mini",
    method: str = "patch",
    signed: bool = False,
    k: str | None = None,
    n: int = 32,
    rank: int = 32,
    draws: int = 5,
    seed: int = 0,
    split: str = "test",
    positions: Literal["last", "all"] = "last",
    scale: float = 0.0,
    metrics: str = "exact,chrf",
    comet_command: str = "comet-score",
    max_tokens: int = 32,
    matrix: bool = False,
    matrix_k: str | None = None,
    out: str = "runs",
    device: str | None = None,
    dtype: str = "float32",
    n_devices: int = 1,
    budget: int | None = None,
    quiet: bool = False,
    **options: str,
) -> None:
    """Mask the top heads of a ranking, or as many at random, and judge what the model then says.

    Some questions rank the heads, others, about other things, are answered. A run folder is written
    below --out; the last line is its report.

    Args:
        tasks: a comma list of built-in tasks (below) or .jsonl files with question and answer
        model: mini, mini-sparse, smollm2, a model directory, a .gguf file or a hub id
        method: patch, attribution, ig, hybrid, path, direct, gating (see discover), or probe: a
            classifier that tells the tasks' functions apart
        signed: rank by the signed score, not by its size
        k: heads to mask, numbers or shares (16,32,10%); with --method probe also elbow, as
            many as the probe finds for each function; without it the four largest powers of two
            up to a quarter of the heads
        n: questions to answer, of each task or function
        rank: questions that rank the heads, of each
        draws: sets of random heads for every k, none of them among the top ones; 0 for none
        seed: of the questions and the random heads
        split: test, train (what our embedded models have seen) or all
        positions: mask at the last position of every pass (the prompt is read by all heads), or all
        scale: what a masked head's output is multiplied by
        metrics: exact, composite, chrf, bleu, rouge1, comet, in a comma list
        comet_command: the comet-score program of unbabel-comet, for --metrics comet
        max_tokens: longest answer
        matrix: also mask each function's heads and test every other function
        matrix_k: heads to mask for that, one number or share; default: the middle one of --k
        out: the folder that holds run folders
        device: cpu, cuda, cuda:1, mps; default: the best there is
        dtype: float32, float64, bfloat16 or float16
        n_devices: GPUs to spread the layers over
        budget: tokens per pass, which bounds memory; default: what suits the device
        quiet: no notices and no progress bar
        options: the method's own options
    """
    settings = runs.settings_of(locals())
    names = read_list(tasks, str, "--tasks")
    listed = read_list(metrics, str, "--metrics")
    check_masks(method, k, draws, matrix, matrix_k, scale, options)
    check_questions(names, method, n, rank, split)
    check_answers(listed, max_tokens)
    source = locate.find(model, quiet=quiet)
    folder = runs.folder_for(out, ["mask", model, method], settings)
    say(f"Loading {model} ...", quiet)
    from mechheads.masking import gather, mask_heads
    from mechheads.masking.matrix import cross_mask
    from mechheads.masking.report import write_masking
    from mechheads.metrics import text as quality
    from mechheads.models.load import load
    from mechheads.models.model import shape_of
    from mechheads.models.provenance import provenance
    from mechheads.reports.run import REPORT

    qualities = [quality.find(name, comet_command) for name in listed]
    start = time.monotonic()
    loaded = load(model, device=device, dtype=dtype, n_devices=n_devices, quiet=quiet)
    heads = len(shape_of(loaded).every_head)
    wanted, middle = read_masks(k, matrix_k, matrix, heads, draws)
    parts = make_questions(loaded, names, n, rank, seed, split, max_tokens)
    common: dict[str, Any] = {
        "seed": seed,
        "max_tokens": max_tokens,
        "budget": budget,
        "quiet": quiet,
    }
    rankings, probing = rank_heads(loaded, parts.ranked, method, signed, options, common)
    sizes = {name: wanted or elbow_size(probing, name, heads, draws) for name in rankings}
    common |= {"positions": positions, "scale": scale}
    panels = []
    for part in parts.asked:
        say(f"{part.name}: {len(part)} questions", quiet)
        panels.append(
            mask_heads(
                loaded,
                part,
                rankings[part.name],
                sizes[part.name],
                qualities,
                draws=draws,
                **common,
            )
        )
    found = gather(loaded, method, panels, qualities, positions, draws=draws)
    crossed = None
    if matrix:
        crossed = cross_mask(
            loaded, parts.asked, rankings, middle, qualities[0], draws=max(2, draws), **common
        )
    orders = orders_of(crossed)
    origin = provenance(loaded, source, [*parts.ranked, *parts.asked], seed)
    sentence, warning = in_words(found), " ".join(filter(None, [weak(found), parts.missing]))
    numbers = headline(found, parts, probing, orders) | {"warning": warning or None}
    record = runs.Record("mask", settings, numbers, origin)
    timings = {"seconds": time.monotonic() - start}
    runs.keep(
        folder,
        record,
        timings,
        lambda place: write_masking(
            place, found, parts, crossed, orders, probing, record, sentence, warning
        ),
    )
    print("\n".join(filter(None, [sentence, warning and f"Warning: {warning}"])))
    print(folder / REPORT)


def check_questions(names: list[str], method: str, n: int, rank: int, split: str) -> None:
    """What can be wrong with the questions is looked at before torch is imported."""
    import tasks
    from tasks import questions as question_files

    if len(set(names)) < len(names):
        raise MechheadsError(f"--tasks names one twice: {','.join(names)}.")
    for flag, size in (("--n", n), ("--rank", rank)):
        check_prompts(flag, size)
    for name in names:
        if not tasks.is_file(name):
            tasks.check(name, n, split, {})
            continue
        question_files.from_file(name)
        if method != PROBE:
            raise MechheadsError(
                f"{name} has questions but no corrupted prompts, which --method {method} needs. "
                "Use --method probe."
            )


def check_masks(
    method: str,
    k: str | None,
    draws: int,
    matrix: bool,
    matrix_k: str | None,
    scale: float,
    options: Mapping[str, str],
) -> None:
    """The same for what ranks the heads and how many are masked."""
    if method not in (*methods.METHODS, PROBE):
        raise unknown("method", method, [*methods.METHODS, PROBE])
    if method != PROBE:
        methods.check_flags(method, options)
    elif options:
        raise MechheadsError(
            f"unknown flag {flag_of(next(iter(options)))}: method {PROBE} has no such option."
        )
    if k == ELBOW and method != PROBE:
        raise MechheadsError(f"--k {ELBOW} is what --method {PROBE} finds, not {method}.")
    if k == ELBOW and matrix and not matrix_k:
        raise MechheadsError(f"--matrix masks one number of heads: give --matrix-k with --k {k}.")
    if matrix_k and not matrix:
        raise MechheadsError("--matrix-k belongs to --matrix, which is not given.")
    if draws < 0:
        raise MechheadsError(f"--draws takes 0 or more, got {draws}.")
    if not 0 <= scale < 1:
        raise MechheadsError(f"--scale takes 0 up to 1, got {scale}.")


def check_answers(listed: list[str], max_tokens: int) -> None:
    """The same for the answers and what judges them."""
    if max_tokens < 1:
        raise MechheadsError(f"--max-tokens takes 1 or more, got {max_tokens}.")
    if len(set(listed)) < len(listed):
        raise MechheadsError(f"--metrics names one twice: {','.join(listed)}.")


def read_masks(
    k: str | None, matrix_k: str | None, matrix: bool, heads: int, draws: int
) -> tuple[tuple[int, ...], int]:
    """How many heads to mask, none where the elbow says it, and how many for the matrix."""
    from mechheads.masking.selection import check_sizes, read_sizes

    sizes = () if k == ELBOW else read_sizes(k, heads)
    check_sizes(sizes, heads, draws)
    if not matrix:
        return sizes, 0
    crossed = read_sizes(matrix_k, heads, "--matrix-k") if matrix_k else sizes
    if matrix_k and "," in matrix_k:
        raise MechheadsError(f"--matrix-k takes one number of heads or share, got {matrix_k}.")
    middle = crossed[(len(crossed) - 1) // 2]
    check_sizes([middle], heads, 1, "--matrix-k")
    return sizes, middle


def make_questions(
    model: "Model", names: list[str], n: int, rank: int, seed: int, split: str, max_tokens: int
) -> "Parts":
    """Questions that rank the heads, and others to answer, by function."""
    import tasks
    from mechheads.models.model import encoder_of
    from mechheads.prompts import lexicon_of
    from mechheads.prompts.partitions import split_questions
    from tasks import questions as question_files

    made = [
        part
        for name in names
        for part in question_files.questions(
            name,
            lexicon_of(model),
            n=None if tasks.is_file(name) else n + rank,
            seed=seed,
            split=split,
        )
    ]
    return split_questions(encoder_of(model), made, n=n, rank=rank, max_tokens=max_tokens)


def rank_heads(
    model: "Model",
    ranked: "Sequence[Questions]",
    method: str,
    signed: bool,
    options: Mapping[str, str],
    common: Mapping[str, Any],
) -> "tuple[Mapping[str, list[tuple[int, int]]], Probing | None]":
    """A ranking of all heads for every function, and the probe that made it."""
    if method == PROBE:
        from mechheads.masking.probe import probe_functions

        probing = probe_functions(model, ranked, **common)
        return {name: probing.ranking(name, signed=signed) for name in probing.functions}, probing
    found = {}
    for part in ranked:
        assert part.prompts is not None
        say(f"{part.name}: ranking heads by {method}", common["quiet"])
        own = {"budget": common["budget"], "quiet": common["quiet"], **options}
        effects = methods.score_heads(model, part.prompts, method, **own)
        found[part.name] = effects.ranking(signed=signed)
    return found, None


def elbow_size(probing: "Probing | None", function: str, heads: int, draws: int) -> tuple[int, ...]:
    """As many heads as the probe finds for a function."""
    from mechheads.masking.selection import check_sizes

    assert probing is not None
    size = probing.elbows[function]
    check_sizes([size], heads, draws)
    return (size,)


def headline(
    found: "Masking",
    parts: "Parts",
    probing: "Probing | None",
    orders: "tuple[Matrix, Matrix] | None",
) -> dict[str, Any]:
    """The numbers of result.json."""
    from dataclasses import asdict

    from mechheads.masking.matrix import compare_orders
    from mechheads.scoring.statistics import wilson

    metric = next(iter(found.labels))
    numbers: dict[str, Any] = {"metric": metric, "labels": dict(found.labels)}
    numbers["parts"] = {
        function: {
            "lost_without_top": fall.top,
            "lost_without_random": fall.random,
            "top_loses_more": fall.more,
            "low": fall.low,
            "high": fall.high,
        }
        for function, fall in found.falls(metric).items()
    }
    if probing is not None:
        low, high = wilson(probing.right, probing.n)
        numbers |= {"probe_accuracy": probing.accuracy, "probe_n": probing.n}
        numbers |= {"probe_low": low, "probe_high": high, "probe_chance": probing.chance}
    if orders is not None:
        for name, values in asdict(compare_orders(*orders)).items():
            ends = ("", ", low", ", high")
            numbers |= {f"hierarchy: {name}{e}": v for e, v in zip(ends, values, strict=True)}
    return numbers | {"too_long": parts.too_long, "left_out": dict(parts.left_out)}


def in_words(found: "Masking") -> str:
    """Whether top heads matter more than random ones."""
    metric, label = next(iter(found.labels.items()))
    said = []
    for function, fall in found.falls(metric).items():
        random = (
            f", {fall.random:.2f} without random ones: TopK loses {abs(fall.more):.2f} "
            f"{'less' if fall.more < 0 else 'more'} than RandomK (95 % interval of the difference "
            f"{fall.low:+.2f} to {fall.high:+.2f})"
            if fall.random == fall.random
            else ""
        )
        said.append(f"{function} {fall.top:.2f} without the top heads{random}")
    return f"Loss of {label}, mean over k: {'; '.join(said)}."


def weak(found: "Masking") -> str:
    """A warning where the whole model fails already, by exact match."""
    rates = {panel.function: panel.right()[0].mean().item() for panel in found.panels}
    listed = ", ".join(f"{name} ({rate:.0%})" for name, rate in rates.items() if rate < WEAK)
    if not listed:
        return ""
    return f"{found.model} answers few questions rightly even with all heads: {listed}."


def orders_of(crossed: "Matrix | None") -> "tuple[Matrix, Matrix] | None":
    """Low-order functions' heads masked and high-order ones tested, and the other way round."""
    from tasks.questions import HIGH_ORDER, LOW_ORDER

    up = crossed and crossed.part(LOW_ORDER, HIGH_ORDER)
    down = crossed and crossed.part(HIGH_ORDER, LOW_ORDER)
    return (up, down) if up and down else None


def flags() -> list[str]:
    """The names of all methods' own options."""
    return [flag for method in methods.METHODS.values() for flag in method.flags]


if __name__ == "__main__":
    run(mask, notes, flags)
