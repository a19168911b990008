"""What every method finds on models whose heads are known.

A method finds a head if its effect is among the strongest k, where k is the number of true heads,
and at least a twentieth of the strongest one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mechheads.heads import name_of
from mechheads.progress import bar
from mechheads.prompts import Prompts

if TYPE_CHECKING:
    from mechheads.models.model import Model
    from mechheads.scoring.effects import HeadEffects

LEAST = 0.05  # of the strongest effect
Head = tuple[int, int]


@dataclass(frozen=True)
class Way:
    """A method with options, and what it is called in the table."""

    name: str
    method: str
    options: Mapping[str, Any]


WAYS = (
    Way("patch", "patch", {}),
    Way("patch, denoising", "patch", {"direction": "denoising"}),
    Way("patch, zero", "patch", {"replacement": "zero"}),
    Way("patch, mean", "patch", {"replacement": "mean"}),
    Way("patch, position_mean", "patch", {"replacement": "position_mean"}),
    Way("attribution", "attribution", {}),
    Way("ig", "ig", {}),
    Way("atp", "atp", {}),
    Way("atp, denoising", "atp", {"direction": "denoising"}),
    Way("gim", "gim", {}),
    Way("hybrid", "hybrid", {}),
    Way("ensemble:patch,ig", "ensemble:patch,ig", {}),
    Way("path (to the logits)", "path", {}),
    Way("direct", "direct", {}),
    Way("gating", "gating", {"seeds": 2, "updates": 200}),
)


@dataclass(frozen=True)
class Truth:
    """A model whose heads are known, with prompts for it."""

    name: str
    model: "Model"
    prompts: Prompts
    roles: Mapping[Head, str]


@dataclass(frozen=True)
class Finding:
    """What a method finds on a model, and what it misses."""

    way: str
    model: str
    found: tuple[Head, ...]
    missed: tuple[Head, ...]

    @property
    def cell(self) -> str:
        """The cell of the table."""
        if not self.missed:
            return "all"
        return f"not {', '.join(name_of(*head) for head in self.missed)}"


def known_models(n: int = 32) -> list[Truth]:
    """The models of this package whose heads are known, with n prompts each."""
    import tasks
    from mechheads.models.known.designs import DESIGNS
    from mechheads.models.load import load

    loaded = [(name, load(name, device="cpu"), design) for name, design in DESIGNS.items()]
    return [
        Truth(name, model, tasks.make(name, model, n=n, split="all"), design.roles)
        for name, model, design in loaded
    ]


def judge_methods(
    truths: Sequence[Truth], ways: Sequence[Way] = WAYS, quiet: bool = True
) -> list[Finding]:
    """Which of the true heads each method finds on each model.

    >>> judge_methods(known_models(n=8)[:1], WAYS[:1])[0].cell
    'all'
    """
    from mechheads.scoring.registry import score_heads

    findings = []
    with bar(len(ways) * len(truths), "Methods", quiet) as progress:
        for way in ways:
            for truth in truths:
                shared = {"quiet": True, **way.options}
                effects = score_heads(truth.model, truth.prompts, way.method, **shared)
                found = strong_heads(effects, len(truth.roles))
                seen = tuple(head for head in truth.roles if head in found)
                missed = tuple(head for head in truth.roles if head not in found)
                findings.append(Finding(way.name, truth.name, seen, missed))
                progress.update()
    return findings


def strong_heads(effects: "HeadEffects", k: int) -> list[Head]:
    """The strongest k heads, without those far weaker than the strongest."""
    sizes = effects.scores.abs()
    return [head for head in effects.ranking()[:k] if sizes[head] >= LEAST * sizes.max() > 0]


def print_findings(
    truths: Sequence[Truth], findings: Sequence[Finding], show: Callable[[Any], None]
) -> None:
    """Print the roles of the true heads, and a row per method."""
    from rich.table import Table

    roles = Table("model", "true heads", box=None, pad_edge=False)
    for truth in truths:
        listed = (f"{name_of(*head)} {role}" for head, role in truth.roles.items())
        roles.add_row(truth.name, ", ".join(listed))
    show(roles)
    table = Table("method", *(truth.name for truth in truths), box=None, pad_edge=False)
    for way in dict.fromkeys(verdict.way for verdict in findings):
        table.add_row(way, *(v.cell for v in findings if v.way == way))
    show(table)
