"""The job of `compare`: two models on the same tasks, or two runs of `discover`."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mechheads.errors import MechheadsError
from mechheads.models import locate
from mechheads.models.options import ModelOptions
from mechheads.options import pick, read_list, read_path
from mechheads.progress import stages
from mechheads.runs.folder import is_run, read_run

from .discovery import EDGE_OPTIONS, check_no_heads
from .prompts import check, length, ranking_and_judging
from .run import Job, Measured, Session

if TYPE_CHECKING:
    from mechheads.runs.result import Result

# Passed to circuits.discover unchanged.
OPTIONS = "method threshold signed replacement points draws seed budget".split()


def prepare(settings: Mapping[str, Any], quiet: bool = False) -> Job:
    """Check the settings; needs no torch."""
    pair = settings["standard"], settings["sparse"]
    names = read_list(settings["tasks"], str, "--tasks")
    # A folder that happens to be called mini is not the model.
    ours = (*locate.embedded(), *locate.FETCHABLE)
    saved = [name not in ours and is_run(name) for name in pair]
    if any(saved) and not all(saved):
        raise MechheadsError(
            f"--standard and --sparse take two models or two run folders, not one of each; got "
            f"{pair[0]} and {pair[1]}."
        )
    if all(saved):
        # All other settings come from the runs.
        settings = {
            **{name: settings[name] for name in ("standard", "sparse", "threshold")},
            "level": level_of(pair),
        }
    else:
        check_models(pair, names, settings, quiet)
    edges = settings["level"] == "edges"

    def measure(session: Session) -> Measured:
        import circuits
        from circuits.experiment import check_settings

        checked = ("threshold", "points", "draws")
        check_settings(**{name: settings[name] for name in checked if name in settings})
        sides, weights = [], {"standard": 1.0, "sparse": 1.0}
        if not all(saved):
            sizes = [pick(ModelOptions, settings).size(name) for name in pair]
            weights = dict(zip(weights, sizes, strict=True))
        with stages("compare", weights, session.quiet) as progress:
            for side, name in zip(weights, pair, strict=True):
                with progress.stage(side):
                    sides.append(
                        read_discovery(name, edges)
                        if all(saved)
                        else discover_tasks(name, names, settings, session)
                    )
        compare = circuits.compare_edges if edges else circuits.compare
        found = compare(sides[0][0], sides[1][0], settings["threshold"])
        return Measured(found, {"standard": sides[0][1], "sparse": sides[1][1]})

    words = ["compare", *(["edges"] if edges else []), *pair]
    return Job(words, list(pair), settings, measure)


def level_of(pair: Sequence[str]) -> str:
    """The level of two saved runs, heads or edges; an error if it is not the same."""
    runs = [read_run(read_path(name, "the run"), "discover") for name in pair]
    one, two = (str(run.settings.get("level", "heads")) for run in runs)
    if one != two:
        raise MechheadsError(
            f"{pair[0]} is a run of {one}, {pair[1]} of {two}, so they cannot be compared. Give "
            "two runs of the same --level."
        )
    return one


def check_models(
    pair: Sequence[str], names: Sequence[str], settings: Mapping[str, Any], quiet: bool
) -> None:
    """Raise an error if a task or a model cannot be used."""
    if len(set(names)) < len(names):
        raise MechheadsError(f"--tasks lists a task twice: {','.join(names)}.")
    edges = settings["level"] == "edges"
    if edges:
        check_no_heads(settings)
    for name in names:
        check(name, "ig" if edges else settings["method"], settings, {})
    for name in pair:
        pick(ModelOptions, settings).find(name, quiet)


def read_discovery(name: str, edges: bool) -> "tuple[list[Result], Mapping[str, Any]]":
    """The result of a saved run, of heads or of edges, and its provenance."""
    from circuits import Discovery, EdgeDiscovery

    folder, kind = read_path(name, "the run"), EdgeDiscovery if edges else Discovery
    return [kind.load(folder)], read_run(folder).provenance


def discover_tasks(
    name: str, names: Sequence[str], settings: Mapping[str, Any], session: Session
) -> "tuple[list[Result], Mapping[str, Any]]":
    """The results of every task on a model, and their provenance."""
    import circuits
    from mechheads.models.provenance import provenance

    loading = pick(ModelOptions, settings)
    edges = settings["level"] == "edges"
    run = circuits.discover_edges if edges else circuits.discover
    given = {key: settings[key] for key in (EDGE_OPTIONS if edges else OPTIONS) if key in settings}
    loaded = loading.load(name, session.models, session.quiet)
    prompts = [ranking_and_judging(loaded, task, settings, {}) for task in names]
    found, weights = [], dict(zip(names, map(length, prompts), strict=True))
    with stages("compare", weights, session.quiet) as progress:
        for task, (ranked, judged) in zip(names, prompts, strict=True):
            with progress.stage(task):
                found.append(run(loaded, ranked, judged, quiet=session.quiet, **given))
    every = [part for both in prompts for part in both]
    return found, provenance(loaded, loading.find(name), every, settings["seed"])
