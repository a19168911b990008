"""Which prompts fit gates and which test them."""

from mechheads.errors import MechheadsError
from mechheads.models.load import Model

from .batches import batches
from .pairs import LEAST, Prompts

USUAL, USUAL_TEST = 96, 32  # prompts that gates are fitted to, and that test them


def wanted(n: int | None, test: int | None) -> int:
    """How many prompts to make for both."""
    return (n or USUAL) + (test or USUAL_TEST)


def split_prompts(
    model: Model, made: Prompts, n: int | None, test: int | None
) -> tuple[Prompts, Prompts]:
    """Prompts that fit and prompts that test: no group is in both, and the model takes them all.

    What is not told is the usual number, or what there is of a small task.
    """
    tested = test or min(USUAL_TEST, len(made) - n if n else len(made) // 4)
    fitted = n or len(made) - tested
    one, two = made.first(fitted + tested).split_at(fitted)
    if len(made) < fitted + tested or min(len(one), len(two)) < LEAST:
        raise MechheadsError(
            f"{made.task} has {len(made)} different prompts, too few to fit {n or USUAL} and test "
            f"{test or USUAL_TEST}. Ask for fewer with --n and --test."
        )
    both = one, two.first(tested)
    for part in both:
        list(batches(model, part))
    return both
