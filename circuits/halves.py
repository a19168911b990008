"""Which prompts rank the heads and which judge the ranking, and effects that fit them."""

from mechheads.errors import MechheadsError
from mechheads.models.model import Model, encoder_of, model_name, shape_of
from mechheads.prompts import LEAST, Prompts, check_given, check_prompts, tokenize
from mechheads.scoring.effects import HeadEffects


def in_halves(model: Model, prompts: Prompts, test: Prompts | None) -> tuple[Prompts, Prompts]:
    """The prompts that rank and those that judge, or an error if they cannot be used."""
    check_given(prompts)
    if test is None and len(prompts) < 2 * LEAST:
        raise MechheadsError(
            f"{len(prompts)} prompts are too few: half of them rank the heads and half judge the "
            f"ranking, {LEAST} or more each."
        )
    tokenize(encoder_of(model), prompts)  # the error lists every prompt that cannot be used
    ranking, judging = prompts.halves() if test is None else (prompts, test)
    check_sizes(len(ranking), len(judging))
    return ranking, judging


def check_effects(effects: HeadEffects, model: Model, prompts: Prompts) -> None:
    """Raise an error if precomputed effects are not of these prompts on this model."""
    ours = model_name(model), prompts.task, len(prompts)
    rows = len(effects.values) if effects.over == "prompts" else len(prompts)
    grid, own = tuple(effects.values.shape[1:]), shape_of(model).grid
    if grid != own and effects.unit == "head":
        raise MechheadsError(
            f"These effects are of {grid[0]} layers of {grid[1]} heads, but {ours[0]} has "
            f"{own[0]} of {own[1]}. Compute them again."
        )
    if not bool(effects.values.isfinite().all()):
        raise MechheadsError(f"These effects ({effects.method}) are not all finite numbers.")
    if (effects.model, effects.task, rows) != ours:
        raise MechheadsError(
            f"These effects are of {effects.task} on {effects.model} ({rows} prompts), not of "
            f"{prompts.task} on {ours[0]} ({len(prompts)} prompts). Give the prompts that they "
            "were computed on, and others as test, which judge the ranking."
        )


def check_sizes(n: int, test: int) -> None:
    """Raise an error if there are too few prompts for intervals."""
    for flag, size in (("--n", n), ("--test", test)):
        check_prompts(flag, size)
