"""What fitted gates tell: the scores and roles of heads, and how far seeds agree.

facilitation = G-            open even while gates are pulled closed
irrelevance  = G+ (1 - G-)   open or closed, as pulled
interference = 1 - G+        closed even while gates are pulled open
A head has a role if its score is 0.5 or more.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mechheads.runs.frames import tidy
from mechheads.runs.result import Result

if TYPE_CHECKING:
    import pandas as pd

ROLES = ("facilitation", "irrelevance", "interference")
NAMES = {
    "facilitation": "facilitating",
    "irrelevance": "irrelevant",
    "interference": "interfering",
}
FITS = ("free", "plus", "minus")
LIMIT = 0.5
REST = 0.05  # a fit has converged if its gates move by less, mean over heads


@dataclass(frozen=True)
class Gates(Result):
    """The gates of every seed: `free` of any pull, pulled open (`plus`) and closed (`minus`).

    `losses` and `means` are the targets' loss and the mean gate at every update of the three fits;
    `moved` is how far a gate still moved in the last third, mean over heads. `nll` is the loss on
    all fitted prompts with the final gates, `ungated` that of the model without gates.
    """

    task: str
    model: str
    free: Float[Tensor, "seed layer head"]
    plus: Float[Tensor, "seed layer head"]
    minus: Float[Tensor, "seed layer head"]
    losses: Float[Tensor, "3 seed update"]
    means: Float[Tensor, "3 seed update"]
    moved: Float[Tensor, "3 seed"]
    nll: Float[Tensor, "3 seed"]
    ungated: float
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name in headings and messages."""
        return f"{self.task} on {self.model}"

    @property
    def facilitation(self) -> Float[Tensor, "seed layer head"]:
        """G-."""
        return self.minus

    @property
    def irrelevance(self) -> Float[Tensor, "seed layer head"]:
        """G+ (1 - G-)."""
        return self.plus * (1 - self.minus)

    @property
    def interference(self) -> Float[Tensor, "seed layer head"]:
        """1 - G+."""
        return 1 - self.plus

    def score(self, role: str) -> Float[Tensor, "seed layer head"]:
        """The score of a role, by name."""
        return getattr(self, role)

    def has(self, role: str) -> Bool[Tensor, "seed layer head"]:
        """Which heads have the role."""
        return self.score(role) >= LIMIT

    def shares(self) -> dict[str, float]:
        """The share of heads with each role, mean over seeds."""
        return {role: self.has(role).float().mean().item() for role in ROLES}

    def frame(self) -> "pd.DataFrame":
        """A tidy frame: seed, layer, head, g_plus, g_minus and the three scores."""
        columns = {"g_plus": self.plus, "g_minus": self.minus}
        columns |= {role: self.score(role) for role in ROLES}
        return tidy(("seed", "layer", "head"), columns)

    def role_frame(self) -> "pd.DataFrame":
        """A row per role: heads that have it with every seed, with any seed, and mean share."""
        import pandas as pd

        heads = self.plus[0].numel()
        rows = []
        for role in ROLES:
            has = self.has(role)
            always, sometimes = int(has.all(0).sum()), int(has.any(0).sum())
            rows.append((NAMES[role], always, sometimes, always / heads, sometimes / heads))
        columns = ["role", "always", "any seed", "share always", "share any seed"]
        frame = pd.DataFrame(rows, columns=pd.Index(columns))
        frame["share, mean over seeds"] = list(self.shares().values())
        return frame

    def role_of(self, layer: int, head: int) -> str:
        """The role that the head has with most seeds; empty if there is none."""
        counts = {role: int(self.has(role)[:, layer, head].sum()) for role in ROLES}
        best = max(counts, key=lambda role: counts[role])
        return NAMES[best] if 2 * counts[best] > len(self.plus) else ""

    @property
    def effects(self) -> Float[Tensor, "seed layer head"]:
        """Facilitation minus interference: above 0 for heads that help."""
        return self.facilitation - self.interference

    def ranking(self) -> list[tuple[int, int]]:
        """All heads, most needed first."""
        mean = self.effects.mean(0)
        order = torch.sort(mean.flatten(), descending=True, stable=True).indices
        return [divmod(i, mean.shape[1]) for i in order.tolist()]

    @property
    def warnings(self) -> tuple[str, ...]:
        """Signs that a fit has not converged."""
        found = [
            unfinished(fit, self.losses[i], self.moved[i], self.nll[i], self.ungated)
            for i, fit in enumerate(FITS)
        ]
        return tuple(dict.fromkeys(words for words in found if words))

    @property
    def headline(self) -> dict[str, Any]:
        """The share of heads with each role, and the loss with and without gates."""
        return {
            **{f"share_{role}": share for role, share in self.shares().items()},
            "nll_ungated": self.ungated,
            **{f"nll_{fit}": self.nll[i].mean().item() for i, fit in enumerate(FITS)},
            "batch": self.settings["batch"],
        }

    @property
    def sentence(self) -> str:
        """The shares as a sentence."""
        shares = self.shares()
        parts = ", ".join(f"{shares[role]:.0%} {NAMES[role]}" for role in shares)
        return f"{self.name}: of {self.plus[0].numel()} heads, {parts}."


def tenth_of(updates: int) -> int:
    """A tenth of the updates."""
    return updates // 10


def unfinished(
    fit: str,
    losses: Float[Tensor, "seed update"],
    moved: Float[Tensor, " seed"],
    nll: Float[Tensor, " seed"] | None = None,
    ungated: float = 0.0,
) -> str | None:
    """Why a fit needs more updates, or None; every seed is checked separately.

    The gates of a pulled fit must have converged. A free fit must not end with an nll far above
    that of the ungated model, or with a loss that still falls.
    """
    tenth = tenth_of(losses.shape[1])
    if tenth < 2:
        return "fewer than 20 --updates are too few to tell whether the fits have converged."
    if fit != "free" or nll is None:
        return _told(moved > REST, f"the {fit} fit has not converged: gates still move")
    worse = nll > ungated + max(0.1, 0.5 * ungated)
    if worse.any():
        return _told(worse, "the free gates are worse than none: the loss is above the ungated one")
    before, last = losses[:, -3 * tenth : -2 * tenth], losses[:, -tenth:]
    end = last.mean(1)
    fall, noise = before.mean(1) - end, ((before.var(1) + last.var(1)) / tenth).sqrt()
    least = torch.maximum(0.05 * (losses[:, :tenth].mean(1) - end), 3 * noise)
    return _told(fall > least, "the free fit has not converged: its loss still falls")


def _told(seeds: Bool[Tensor, " seed"], what: str) -> str | None:
    count = f"with {int(seeds.sum())} of {len(seeds)} seeds"
    return f"{what} {count}. Give more --updates." if seeds.any() else None
