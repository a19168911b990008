"""Verb `mask`: what a model says without its most important heads, or without random ones."""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from . import methods, runs, sources
from .cli import run
from .errors import MechheadsError, unknown
from .progress import say
from .prompts import LEAST, check_prompts, read_list

if TYPE_CHECKING:
    from .masking.experiment import Masking
    from .masking.matrix import Matrix
    from .masking.probe import Probing
    from .models import Model
    from .prompts import Questions

PROBE = "probe"


def mask(
    *,
    tasks: str = "retrieval,knowledge_recall,math_calculation,inference",
    model: str = "mini",
    method: str = "patch",
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
    budget: int | None = None,
    quiet: bool = False,
) -> None:
    """Mask the top heads of a ranking, or as many at random, and judge what the model then says.

    Some questions rank the heads, others are answered. A run folder is written below --out; the
    last line is its report.

    Args:
        tasks: a comma list of built-in tasks (below) or .jsonl files with question and answer
        model: mini, mini-sparse, smollm2, a model directory, a .gguf file or a hub id
        method: patch, attribution, ig, hybrid, path, direct, gating (see discover), or probe: a
            classifier that tells the tasks' functions apart
        k: heads to mask, numbers or shares (16,32,10%); default: powers of two that fit the model
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
        matrix_k: heads to mask for that; default: the middle one of --k
        out: the folder that holds run folders
        device: cpu, cuda, cuda:1, mps; default: the best there is
        dtype: float32, float64, bfloat16 or float16
        budget: tokens per pass, which bounds memory; default: what suits the device
        quiet: no notices and no progress bar
    """
    settings = runs.settings_of(locals())
    names = read_list(tasks, str, "--tasks")
    listed = read_list(metrics, str, "--metrics")
    check(names, method, n, rank, split)
    if max_tokens < 1:
        raise MechheadsError(f"--max-tokens takes 1 or more, got {max_tokens}.")
    if not 0 <= scale < 1:
        raise MechheadsError(f"--scale takes 0 up to 1, got {scale}.")
    source = sources.find(model, quiet=quiet)
    folder = runs.folder_for(out, ["mask", model, method], settings)
    say(f"Loading {model} ...", quiet)
    from .masking import Masking, mask_heads, quality
    from .masking.matrix import cross_mask
    from .masking.report import write_masking
    from .masking.selection import read_sizes
    from .models import load
    from .provenance import provenance
    from .reports import REPORT

    qualities = [quality.find(name, comet_command) for name in listed]
    start = time.monotonic()
    loaded = load(model, device=device, dtype=dtype, quiet=quiet)
    heads = loaded.cfg.n_layers * loaded.cfg.n_heads
    sizes = read_sizes(k, heads)
    middle = read_sizes(matrix_k, heads)[-1] if matrix_k else sizes[(len(sizes) - 1) // 2]
    if draws and 2 * sizes[-1] > heads:
        raise MechheadsError(
            f"--k {sizes[-1]} leaves fewer than {sizes[-1]} other heads of {heads} to draw at "
            f"random. Give up to {heads // 2}, or --draws 0."
        )
    ranked, asked = make_questions(loaded, names, n, rank, seed, split)
    rankings, probing = rank_heads(loaded, ranked, method, seed, budget, quiet)
    common: dict[str, Any] = {
        "seed": seed,
        "positions": positions,
        "scale": scale,
        "max_tokens": max_tokens,
        "budget": budget,
        "quiet": quiet,
    }
    panels = []
    for part in asked:
        say(f"{part.name}: {len(part)} questions", quiet)
        panels.append(
            mask_heads(loaded, part, rankings[part.name], sizes, qualities, draws=draws, **common)
        )
    found = Masking(
        loaded.cfg.model_name,
        method,
        positions,
        tuple(panels),
        {q.name: q.label for q in qualities},
        tuple(q.name for q in qualities if q.accuracy),
        {"sizes": list(sizes), "draws": draws},
    )
    crossed = None
    if matrix:
        crossed = cross_mask(
            loaded, asked, rankings, middle, qualities[0], draws=max(2, draws), **common
        )
    origin = provenance(loaded, source, [*ranked, *asked], seed)
    first = qualities[0].name
    record = runs.Record("mask", settings, headline(found, first, probing), origin)
    timings = {"seconds": time.monotonic() - start}
    sentence, warning = in_words(found, first), weak(found, first)
    runs.keep(
        folder,
        record,
        timings,
        lambda place: write_masking(
            place, found, crossed, hierarchy_of(crossed), probing, record, sentence, warning
        ),
    )
    print("\n".join(filter(None, [sentence, warning and f"Warning: {warning}"])))
    print(folder / REPORT)


def check(names: list[str], method: str, n: int, rank: int, split: str) -> None:
    """What can be wrong is looked at before torch is imported."""
    import tasks
    from tasks import free

    if method not in (*methods.METHODS, PROBE):
        raise unknown("method", method, [*methods.METHODS, PROBE])
    if len(set(names)) < len(names):
        raise MechheadsError(f"--tasks names one twice: {','.join(names)}.")
    for flag, size in (("--n", n), ("--rank", rank)):
        check_prompts(flag, size)
    for name in names:
        if tasks.is_file(name):
            free.from_file(name)
            if method != PROBE:
                raise MechheadsError(
                    f"{name} has questions but no corrupted prompts, which --method {method} "
                    "needs. Use --method probe."
                )
        else:
            tasks.check(name, n, split, {})


def make_questions(
    model: "Model", names: list[str], n: int, rank: int, seed: int, split: str
) -> "tuple[list[Questions], list[Questions]]":
    """Questions that rank the heads, and others to answer, by function."""
    from dataclasses import replace

    from tasks import free

    from .models import lexicon

    ranked, asked = [], []
    for name in names:
        for made in free.questions(name, lexicon(model), n=n + rank, seed=seed, split=split):
            # Where there are too few for both, each gets its part.
            at = rank if len(made) >= n + rank else len(made) * rank // (n + rank)
            if min(at, len(made) - at) < LEAST:
                say(f"{made.name} in {name} has only {len(made)} questions: left out.", False)
                continue
            halves = made.prompts.split_at(at) if made.prompts else (None, None)
            ranked.append(replace(made, items=made.items[:at], prompts=halves[0]))
            asked.append(replace(made, items=made.items[at:], prompts=halves[1]))
    doubled = [part.name for part in asked]
    if len(set(doubled)) < len(doubled):
        raise MechheadsError(f"two of the --tasks have the same function: {', '.join(doubled)}.")
    if not asked:
        raise MechheadsError(f"no function has {2 * LEAST} questions. Give more of them.")
    return ranked, asked


def rank_heads(
    model: "Model",
    ranked: "list[Questions]",
    method: str,
    seed: int,
    budget: int | None,
    quiet: bool,
) -> "tuple[Mapping[str, list[tuple[int, int]]], Probing | None]":
    """A ranking of all heads for every function, and the probe that made it."""
    if method == PROBE:
        from .masking.probe import probe_functions

        probing = probe_functions(model, ranked, seed=seed, quiet=quiet)
        return {name: probing.ranking(name) for name in probing.functions}, probing
    found = {}
    for part in ranked:
        assert part.prompts is not None
        say(f"{part.name}: ranking heads by {method}", quiet)
        effects = methods.score_heads(model, part.prompts, method, budget=budget, quiet=quiet)
        found[part.name] = effects.ranking()
    return found, None


def headline(found: "Masking", metric: str, probing: "Probing | None") -> dict[str, Any]:
    """The numbers of result.json."""
    numbers: dict[str, Any] = {"metric": metric}
    for function, (top, others) in found.falls(metric).items():
        numbers[f"{function}: lost without top heads"] = top
        numbers[f"{function}: lost without random heads"] = others
    if probing is not None:
        numbers |= {"probe_accuracy": probing.accuracy, "probe_chance": probing.chance}
    return numbers


def in_words(found: "Masking", metric: str) -> str:
    """Whether top heads matter more than random ones."""
    parts = []
    for function, (top, others) in found.falls(metric).items():
        random = f", {-others:+.2f} without random ones" if others == others else ""
        parts.append(f"{function} {-top:+.2f} without the top heads{random}")
    return f"Mean change of {found.labels[metric]} over k: {'; '.join(parts)}."


def weak(found: "Masking", metric: str) -> str:
    """A warning where the whole model fails already."""
    table: Any = found.summary()
    table = table[table["metric"] == metric]
    bad = {str(row.function): float(row.whole) for row in table.itertuples() if row.whole < 0.3}
    if not bad:
        return ""
    listed = ", ".join(f"{name} ({value:.0%})" for name, value in bad.items())
    return f"{found.model} answers few questions even with all heads: {listed}."


def hierarchy_of(crossed: "Matrix | None") -> "Matrix | None":
    """Low-order functions' heads masked, high-order ones tested."""
    from tasks.free import HIGH_ORDER, LOW_ORDER

    return crossed.part(LOW_ORDER, HIGH_ORDER) if crossed is not None else None


def notes() -> str:
    """Tasks, for the help text."""
    from . import show

    return show.notes()


if __name__ == "__main__":
    run(mask, notes)
