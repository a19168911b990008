"""The job of `compare`: two models on the same tasks, or two runs of `discover`."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mechheads.errors import MechheadsError
from mechheads.models.options import ModelOptions
from mechheads.options import pick, read_list, read_path
from mechheads.runs.folder import is_run, read_run

from .prompts import check, ranking_and_judging
from .run import Job, Measured, Session

if TYPE_CHECKING:
    from circuits import Discovery

# Passed to circuits.discover unchanged.
OPTIONS = "method threshold signed replacement draws seed budget".split()


def prepare(settings: Mapping[str, Any], quiet: bool = False) -> Job:
    """Check the settings; needs no torch."""
    pair = settings["standard"], settings["sparse"]
    names = read_list(settings["tasks"], str, "--tasks")
    saved = [is_run(name) for name in pair]
    if any(saved) and not all(saved):
        raise MechheadsError(
            f"--standard and --sparse take two models or two run folders, not one of each; got "
            f"{pair[0]} and {pair[1]}."
        )
    if all(saved):
        for name in pair:
            read_run(read_path(name, "the run"), "discover")
        # All other settings come from the runs.
        settings = {name: settings[name] for name in ("standard", "sparse", "threshold")}
    else:
        check_models(pair, names, settings, quiet)

    def measure(session: Session) -> Measured:
        import circuits
        from circuits.discovery import check_settings

        check_settings(threshold=settings["threshold"], draws=settings.get("draws", 2))
        sides = [
            read_discovery(name) if all(saved) else discover(name, names, settings, session)
            for name in pair
        ]
        found = circuits.compare(sides[0][0], sides[1][0], settings["threshold"])
        return Measured(found, {"standard": sides[0][1], "sparse": sides[1][1]})

    return Job(["compare", *pair], list(pair), settings, measure)


def check_models(
    pair: Sequence[str], names: Sequence[str], settings: Mapping[str, Any], quiet: bool
) -> None:
    """Raise an error if a task or a model cannot be used."""
    if len(set(names)) < len(names):
        raise MechheadsError(f"--tasks lists a task twice: {','.join(names)}.")
    for name in names:
        check(name, settings["method"], settings, {})
    for name in pair:
        pick(ModelOptions, settings).find(name, quiet)


def read_discovery(name: str) -> "tuple[list[Discovery], Mapping[str, Any]]":
    """The result of a saved run, and its provenance."""
    from circuits import Discovery

    folder = read_path(name, "the run")
    return [Discovery.load(folder)], read_run(folder).provenance


def discover(
    name: str, names: Sequence[str], settings: Mapping[str, Any], session: Session
) -> "tuple[list[Discovery], Mapping[str, Any]]":
    """The results of every task on a model, and their provenance."""
    import circuits
    from mechheads.models.provenance import provenance

    loading = pick(ModelOptions, settings)
    given = {key: settings[key] for key in OPTIONS}
    loaded = loading.load(name, session.models, session.quiet)
    prompts = [ranking_and_judging(loaded, task, settings, {}) for task in names]
    found = [circuits.discover(loaded, a, b, quiet=session.quiet, **given) for a, b in prompts]
    every = [part for both in prompts for part in both]
    return found, provenance(loaded, loading.find(name), every, settings["seed"])
