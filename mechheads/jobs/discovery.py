"""The job of `discover`: from a task and a model to a circuit."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mechheads.cli.commands import COMMANDS
from mechheads.errors import MechheadsError
from mechheads.models.options import ModelOptions
from mechheads.options import check_alone, flag_of, pick, read_value

from .given import file_digests, read_circuit, read_scores
from .prompts import AUTO, check, ranking_and_judging
from .run import Job, Measured, Session

if TYPE_CHECKING:
    from mechheads.engine.subset_table import SubsetTable
    from mechheads.models.model import Model
    from mechheads.scoring.effects import HeadEffects

# Passed to circuits.discover unchanged.
OPTIONS = (
    "method metric threshold k search alternatives signed direction replacement points draws "
    "seed budget"
).split()

# Passed to circuits.explained_effect_curve unchanged.
CURVE_OPTIONS = "metric threshold signed replacement points draws seed budget".split()
# Passed to circuits.discover_edges unchanged.
EDGE_OPTIONS = "metric threshold signed replacement draws seed budget".split()
# Settings of circuits of heads, and their defaults.
OF_HEADS: Mapping[str, Any] = {
    "method": "auto",
    "k": None,
    "search": "top",
    "heads": None,
    "circuit": None,
    "alternatives": 0,
    "effects": None,
    "direction": "noising",
    "points": "auto",
}

# Checked before the model is loaded.
CHECKED = ("metric", "search", "threshold", "points", "draws", "alternatives")


def prepare(settings: Mapping[str, Any], quiet: bool = False) -> Job:
    """Check the settings; needs no torch."""
    if settings["level"] == "edges":
        return prepare_edges(settings, quiet)
    task, model, method = (settings[name] for name in ("task", "model", "method"))
    loading = pick(ModelOptions, settings)
    own, task_options = check(task, method, settings, COMMANDS["discover"].own_options(settings))
    scores = read_scores(settings)
    circuit = read_circuit(
        settings, "a circuit is either given or chosen", {"k": None, "search": "top"}
    )
    digests = file_digests(settings)
    source = loading.find(model, quiet)

    def measure(session: Session) -> Measured:
        import circuits
        from circuits.experiment import check_settings
        from mechheads.models.provenance import provenance

        check_settings(**{name: settings[name] for name in CHECKED})
        loaded = loading.load(model, session.models, session.quiet)
        prompts, judging = ranking_and_judging(loaded, task, settings, task_options)
        found = circuits.discover(
            loaded,
            prompts,
            judging,
            effects=scores or session.effects,
            circuit=circuit,
            quiet=session.quiet,
            options=own,
            measure=session.subsets,
            n=AUTO if settings["n"] == AUTO else None,
            **{name: settings[name] for name in OPTIONS},
        )
        used = prompts.first(found.effects.notes.get("prompts", len(prompts)))
        origin = provenance(loaded, source, [used, judging], settings["seed"])
        return Measured(found, origin | digests)

    ranked = method if scores is None else "given"
    words = [task, model, ranked, *([] if circuit is None else ["circuit"])]
    return Job(words, [model], settings, measure)


def prepare_edges(settings: Mapping[str, Any], quiet: bool = False) -> Job:
    """The same at the level of edges; they have one method, that of `ig` for heads."""
    task, model = settings["task"], settings["model"]
    check_no_heads(settings)
    loading = pick(ModelOptions, settings)
    own, task_options = check(task, "ig", settings, COMMANDS["discover"].own_options(settings))
    own = {name: read_value(value, int, flag_of(name)) for name, value in own.items()}  # --steps
    source = loading.find(model, quiet)

    def measure(session: Session) -> Measured:
        import circuits
        from circuits.experiment import check_settings
        from mechheads.models.provenance import provenance

        check_settings(**{name: settings[name] for name in CHECKED})
        loaded = loading.load(model, session.models, session.quiet)
        prompts, judging = ranking_and_judging(loaded, task, settings, task_options)
        given = {name: settings[name] for name in EDGE_OPTIONS}
        found = circuits.discover_edges(
            loaded, prompts, judging, quiet=session.quiet, **given, **own
        )
        return Measured(found, provenance(loaded, source, [prompts, judging], settings["seed"]))

    return Job([task, model, "edges"], [model], settings, measure)


def check_no_heads(settings: Mapping[str, Any]) -> None:
    """Raise an error if a setting of circuits of heads is not at its default."""
    why = "edges are ranked by edge attribution, and kept in that order"
    given = {name: default for name, default in OF_HEADS.items() if name in settings}
    if settings["n"] == AUTO:
        raise MechheadsError(f"--level edges takes a number of prompts as --n, not auto: {why}.")
    check_alone("--level edges", why, settings, given)


def patch_layer(
    layer: int | None, given: Mapping[str, Any], session: Session
) -> "HeadEffects | int":
    """The exact effects of one layer's heads; without a layer, the number of layers.

    For workers that share the patching of one job.
    """
    from mechheads.models.model import shape_of
    from mechheads.scoring.activation_patching import patch

    settings, loaded, task_options = _loaded(given, session)
    shape = shape_of(loaded)
    if layer is None:
        return shape.layers
    prompts, _ = ranking_and_judging(loaded, settings["task"], settings, task_options)
    return patch(
        loaded,
        prompts,
        settings["metric"],
        heads=[(layer, head) for head in range(shape.heads)],
        quiet=True,
        **{name: settings[name] for name in ("direction", "replacement", "budget")},
    )


def measure_share(
    share: tuple[int, int], given: Mapping[str, Any], session: Session
) -> "SubsetTable":
    """The i-th of n shares, from 0, of what the curve of the session's effects begins with.

    For workers that share the curve of one job; points around the threshold are added later.
    """
    import circuits
    from circuits.discovery import size_of
    from mechheads.engine.subset_table import Enough, SubsetShare

    settings, loaded, task_options = _loaded(given, session)
    circuit = read_circuit(settings, "a circuit is either given or chosen", {})
    _, judging = ranking_and_judging(loaded, settings["task"], settings, task_options)
    try:
        circuits.explained_effect_curve(
            loaded,
            judging,
            session.effects,
            also=() if circuit is None else (size_of(circuit),),
            measure=SubsetShare(*share),
            quiet=True,
            **{name: settings[name] for name in CURVE_OPTIONS},
        )
    except Enough as enough:
        return enough.table
    raise AssertionError("a curve has subsets to measure")


def _loaded(
    given: Mapping[str, Any], session: Session
) -> "tuple[dict[str, Any], Model, dict[str, Any]]":
    """A patching job's settings in full, its model, and the options of its task."""
    command = COMMANDS["discover"]
    settings = command.in_full(given)
    _, task_options = check(settings["task"], "patch", settings, command.own_options(settings))
    loaded = pick(ModelOptions, settings).load(settings["model"], session.models, quiet=True)
    return settings, loaded, task_options
