"""Verb `discover`: from effects of heads to a circuit, its curve and a report."""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from mechheads import show
from mechheads.cli.parse import importing, run
from mechheads.errors import MechheadsError
from mechheads.models import locate
from mechheads.progress import say
from mechheads.prompts import LEAST, check_prompts
from mechheads.runs import folder as runs
from mechheads.scoring import registry as methods
from mechheads.scoring.registry import METHODS

if TYPE_CHECKING:
    from circuits.discovery import Discovery
    from mechheads.models.model import Model
    from mechheads.prompts import Prompts

USUAL = 32  # prompts that rank, and as many that judge
# What a model is loaded with, besides its name.
LOADING = ("revision", "device", "dtype", "process", "n_devices", "n_ctx", "prepend_bos")


def discover(
    *,
    task: str = "ioi",
    model: str = "mini",
    method: str = "patch",
    metric: str | None = None,
    n: int | None = None,
    test: int | None = None,
    seed: int = 0,
    split: str = "test",
    threshold: float = 0.9,
    k: int | None = None,
    search: Literal["top", "prune", "greedy"] = "top",
    signed: bool = False,
    direction: Literal["noising", "denoising"] = "noising",
    replacement: Literal["corrupt", "zero", "mean", "position_mean"] = "corrupt",
    draws: int = 10,
    out: str = "runs",
    revision: str | None = None,
    device: str | None = None,
    dtype: str = "float32",
    process: bool = False,
    n_devices: int = 1,
    n_ctx: int | None = None,
    prepend_bos: bool | None = None,
    budget: int | None = None,
    quiet: bool = False,
    **options: str,
) -> None:
    """Find the heads that do a task: rank them, keep the first, measure what they explain, report.

    Some prompts rank the heads, others judge the ranking. A run folder is written below --out; the
    last line is its report.

    Args:
        task: a built-in task (below) or a .jsonl file with clean, corrupt, answer and wrong
        model: mini, mini-sparse, smollm2, a model directory, a .gguf file or a hub id
        method: patch, attribution, ig, hybrid, path, direct or gating (below)
        metric: logit_diff, logit_diff_max, prob_diff, logprob, accuracy, top1; default: the task's
        n: prompts that rank the heads; default: 32, or half of a task file
        test: prompts that judge; default: 32, or the other half of a task file
        seed: of the prompts and the random rankings
        split: test, train (what our embedded models have seen) or all
        threshold: share of the effect that the circuit must explain
        k: keep so many heads, instead of as many as the threshold takes
        search: top (the first of the ranking), prune or greedy (fewer heads, slower)
        signed: rank by the signed effect, not by its size; misleads where heads are dead
        direction: noising (break the clean run) or denoising (mend the corrupted one)
        replacement: corrupt, zero, mean or position_mean, of the heads that are not kept
        draws: random rankings to compare with
        out: the folder that holds run folders
        revision: branch, tag or commit of a hub model
        device: cpu, cuda, cuda:1, mps; default: the best there is
        dtype: float32, float64, bfloat16 or float16
        process: fold layer norms and centre weights
        n_devices: GPUs to spread the layers over
        n_ctx: longest input in tokens; default: the model's own limit, at most 2048
        prepend_bos: true or false; default: TransformerLens's custom for the architecture
        budget: tokens per pass, which bounds memory; default: what suits the device
        quiet: no notices and no progress bar
        options: the task's and the method's own options
    """
    settings = runs.settings_of(locals())
    method_options, task_options = check(task, method, n, test, split, options)
    if metric is not None:
        from mechheads import metrics

        metrics.find(metric)
    source = locate.find(model, revision, quiet=quiet)
    folder = runs.folder_for(out, [task, model, method], settings)
    say(f"Loading {model} ...", quiet)
    with importing():
        from circuits import discovery
        from circuits.curve import check_draws
        from circuits.report import write_discovery
        from circuits.search import check_search
        from mechheads.models.load import load
        from mechheads.models.provenance import provenance
        from mechheads.reports.run import REPORT

    check_search(search, threshold)
    check_draws(draws)
    start = time.monotonic(), time.process_time()
    loaded = load(model, quiet=quiet, **{name: settings[name] for name in LOADING})
    prompts, judging = make_prompts(
        loaded, task, task_options, n=n, test=test, seed=seed, split=split
    )
    found = discovery.discover(
        loaded,
        prompts,
        judging,
        method=method,
        metric=metric,
        threshold=threshold,
        k=k,
        how=search,
        signed=signed,
        direction=direction,
        replacement=replacement,
        draws=draws,
        seed=seed,
        budget=budget,
        quiet=quiet,
        options=method_options,
    )
    origin = provenance(loaded, source, [prompts, judging], seed)
    record = runs.Record("discover", settings, found.headline, origin)
    timings = {
        "seconds": time.monotonic() - start[0],
        "cpu_seconds": time.process_time() - start[1],
    }
    runs.keep(folder, record, timings, lambda place: write_discovery(place, found, record))
    print("\n".join(filter(None, [found.sentence, warning_line(found)])))
    print(folder / REPORT)


def check(
    task: str,
    method: str,
    n: int | None,
    test: int | None,
    split: str,
    options: Mapping[str, Any],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The method's own options and the task's, or an error; needs no torch."""
    import tasks

    flags = methods.find(method).flags
    ours = {name: value for name, value in options.items() if name in flags}
    others = {name: value for name, value in options.items() if name not in flags}
    for name in others:
        if any(name in other.flags for other in METHODS.values()) and not show.task_has(task, name):
            methods.check_flags(method, {name: others[name]})
    for flag, size in (("--n", n), ("--test", test)):
        check_prompts(flag, LEAST if size is None else size)
    tasks.check(task, n, split, others)
    return ours, others


def make_prompts(
    model: "Model",
    task: str,
    options: Mapping[str, Any],
    *,
    n: int | None,
    test: int | None,
    seed: int,
    split: str,
) -> "tuple[Prompts, Prompts]":
    """Prompts that rank and prompts that judge: no pair is in both."""
    import tasks
    from mechheads.prompts import lexicon_of

    half = tasks.default_count(task, 2 * USUAL) // 2
    if half < LEAST and (n is None or test is None):
        raise MechheadsError(
            f"{task} has {2 * half} different prompts or so, {LEAST} to rank and {LEAST} to judge "
            "are the least. Add prompts."
        )
    first, second = n or half, test or half
    made = tasks.make(
        task, lexicon_of(model), n=first + second, seed=seed, split=split, **dict(options)
    )
    if len(made) < first + second:
        raise MechheadsError(
            f"{task} has {len(made)} different prompts, {first} to rank and {second} to judge were "
            "asked for. Ask for fewer with --n and --test."
        )
    return made.split_at(first)


def patch_layer(layer: int | None, settings: Mapping[str, Any]) -> methods.Given | int:
    """Only the exact effects of one layer's heads, as the verb would find them; without a layer,
    how many there are. For workers that share a run.
    """
    from inspect import signature

    from mechheads.models.load import load
    from mechheads.models.model import shape_of
    from mechheads.scoring.activation_patching import patch

    parameters = signature(discover).parameters
    given = {name: p.default for name, p in parameters.items() if p.default is not p.empty}
    given |= settings
    options = {name: value for name, value in settings.items() if name not in parameters}
    _, task_options = check(
        given["task"], "patch", given["n"], given["test"], given["split"], options
    )
    loaded = load(given["model"], quiet=True, **{name: given[name] for name in LOADING})
    if layer is None:
        return shape_of(loaded).layers
    sizes = {name: given[name] for name in ("n", "test", "seed", "split")}
    prompts, _ = make_prompts(loaded, given["task"], task_options, **sizes)
    effects = patch(
        loaded,
        prompts,
        given["metric"],
        direction=given["direction"],
        replacement=given["replacement"],
        heads=[(layer, head) for head in range(shape_of(loaded).heads)],
        budget=given["budget"],
        quiet=True,
    )
    return methods.Given(effects, prompts.digest())


def warning_line(found: "Discovery") -> str:
    """The warning of a model that cannot do the task, if there is one."""
    return f"Warning: {found.evaluation.warning}" if found.evaluation.warning else ""


def notes() -> str:
    """Methods and tasks with their own flags, for the help text."""
    lines = ["Methods and their own flags:"]
    for method in METHODS.values():
        flags = "".join(f" --{flag}" for flag in method.flags)
        lines.append(f"  {method.name:<18}{method.summary}{flags and ';'}{flags}")
    return "\n".join([*lines, "", show.notes()])


def flags() -> list[str]:
    """The names of all tasks' and methods' own options."""
    return [*show.task_flags(), *(flag for method in METHODS.values() for flag in method.flags)]


if __name__ == "__main__":
    run(discover, notes, flags)
