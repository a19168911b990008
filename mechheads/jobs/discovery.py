"""The job of `discover`: from a task and a model to a circuit."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mechheads.cli.commands import COMMANDS
from mechheads.models.options import ModelOptions
from mechheads.options import pick

from .prompts import check, ranking_and_judging
from .run import Job, Measured, Session

if TYPE_CHECKING:
    from mechheads.scoring.effects import HeadEffects

# Passed to circuits.discover unchanged.
OPTIONS = "method metric threshold k search signed direction replacement draws seed budget".split()

# Checked before the model is loaded.
CHECKED = ("metric", "search", "threshold", "draws")


def prepare(settings: Mapping[str, Any], quiet: bool = False) -> Job:
    """Check the settings; needs no torch."""
    task, model, method = (settings[name] for name in ("task", "model", "method"))
    loading = pick(ModelOptions, settings)
    own, task_options = check(task, method, settings, COMMANDS["discover"].own_options(settings))
    source = loading.find(model, quiet)

    def measure(session: Session) -> Measured:
        import circuits
        from circuits.discovery import check_settings
        from mechheads.models.provenance import provenance

        check_settings(**{name: settings[name] for name in CHECKED})
        loaded = loading.load(model, session.models, session.quiet)
        prompts, judging = ranking_and_judging(loaded, task, settings, task_options)
        found = circuits.discover(
            loaded,
            prompts,
            judging,
            effects=session.effects,
            quiet=session.quiet,
            options=own,
            **{name: settings[name] for name in OPTIONS},
        )
        return Measured(found, provenance(loaded, source, [prompts, judging], settings["seed"]))

    return Job([task, model, method], [model], settings, measure)


def patch_layer(
    layer: int | None, given: Mapping[str, Any], session: Session
) -> "HeadEffects | int":
    """The exact effects of one layer's heads; without a layer, the number of layers.

    For workers that share the patching of one job.
    """
    from mechheads.models.model import shape_of
    from mechheads.scoring.activation_patching import patch

    settings = COMMANDS["discover"].in_full(given)
    _, task_options = check(
        settings["task"], "patch", settings, COMMANDS["discover"].own_options(settings)
    )
    loaded = pick(ModelOptions, settings).load(settings["model"], session.models, quiet=True)
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
