"""Published circuits to compare with, and those of the known models; heads are counted from 0.

The facts are from the papers; where two sources differ, both are listed. The known models are ours
(`mechheads.models.known`): their circuits are what their weights were written to do.
"""

from collections.abc import Sequence

from mechheads.errors import unknown
from mechheads.models.known.designs import DESIGNS

from .circuit import Circuit, Head


def _circuit(name: str, task: str, model: str, source: str, **roles: list[Head]) -> Circuit:
    named = {head: role.replace("_", " ") for role, heads in roles.items() for head in heads}
    return Circuit(name, tuple(named), task, model, named, source)


IOI = _circuit(
    "ioi_gpt2_small",
    "ioi",
    "gpt2",
    "Wang et al. 2022, arXiv:2211.00593",
    name_mover=[(9, 9), (10, 0), (9, 6)],
    backup_name_mover=[
        (10, 10),
        (10, 6),
        (10, 2),
        (10, 1),
        (11, 2),
        (9, 7),
        (9, 0),
        (11, 9),
    ],
    negative_name_mover=[(10, 7), (11, 10)],
    s_inhibition=[(7, 3), (7, 9), (8, 6), (8, 10)],
    induction=[(5, 5), (5, 8), (5, 9), (6, 9)],
    duplicate_token=[(0, 1), (0, 10), (3, 0)],
    previous_token=[(2, 2), (4, 11)],
)
GREATER_THAN = _circuit(
    "greater_than_gpt2_small",
    "greater_than",
    "gpt2",
    "Hanna et al. 2023, arXiv:2305.00586, heads from its code",
    at_the_end=[(9, 1), (8, 11), (7, 10), (6, 9), (5, 5), (8, 8), (5, 1)],
)
GREATER_THAN_ACDC = _circuit(
    "greater_than_gpt2_small_acdc",
    "greater_than",
    "gpt2",
    "Conmy et al. 2023, arXiv:2304.14997, as listed by AutoCircuit",
    early=[(0, 1), (0, 3), (0, 5)],
    middle=[(5, 5), (6, 1), (6, 9), (7, 10), (8, 11), (9, 1)],
)
DOCSTRING = _circuit(
    "docstring_attn_only_4l",
    "docstring",
    "attn-only-4l",
    "Heimersheim and Janiak 2023, A circuit for Python docstrings",
    token_transform=[(0, 5)],
    argument_matching=[(1, 2)],
    fuzzy_previous_token=[(1, 4)],
    positional=[(2, 0)],
    argument_mover=[(3, 0), (3, 6)],
    less_important=[(0, 2), (0, 4)],
    for_performance=[(0, 1), (1, 0), (2, 3)],
)

KNOWN = [
    Circuit(
        f"known_{design.name}",
        tuple(design.roles),
        name,
        design.short,
        design.roles,
        "its weights, which we wrote",
    )
    for name, design in DESIGNS.items()
]
PUBLISHED = {c.name: c for c in (IOI, GREATER_THAN, GREATER_THAN_ACDC, DOCSTRING, *KNOWN)}


# Layers and heads of their models: a folder of this name may hold another model.
GRIDS = {"gpt2": (12, 12), "attn-only-4l": (4, 8)} | {d.short: d.grid for d in DESIGNS.values()}


def published_for(task: str, model: str, grid: Sequence[int]) -> list[Circuit]:
    """The published circuits for a task on a model with that many layers and heads."""
    found = [c for c in PUBLISHED.values() if c.task == task and c.model == model]
    return found if GRIDS.get(model) == tuple(grid) else []


def published(name: str) -> Circuit:
    """A circuit from the literature, by name.

    Args:
        name: a name in `circuits.literature.PUBLISHED`

    Returns:
        Circuit: the heads with their published roles, and the source.

    >>> import circuits
    >>> circuits.published("ioi_gpt2_small").roles[(9, 9)]
    'name mover'
    """
    if name not in PUBLISHED:
        raise unknown("circuit", name, PUBLISHED)
    return PUBLISHED[name]
