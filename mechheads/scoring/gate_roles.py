"""What fitted gates tell: the scores and roles of heads, and how far seeds agree.

facilitation = G-            open even while gates are pulled closed
irrelevance  = G+ (1 - G-)   open or closed, as pulled
interference = 1 - G+        closed even while gates are pulled open
A head has a role if its score is 0.5 or more.

A score is fitted, between 0 and 1, and differs between seeds only by where the fit began: a test
over seeds would say nothing about the task, and find heads that do nothing significant. What can be
said instead is in `HeadRoles`: how many seeds agree, and what the head does on every prompt.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mechheads.runs.frames import tidy
from mechheads.runs.result import Result

from .statistics import bootstrap

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
FLAT = 1e-10  # Adam's epsilon of 1e-8 then keeps a logit where it is
REST = 0.05  # a fit has converged if its gates move by less, mean over heads


@dataclass(frozen=True)
class Gates(Result):
    """The gates of every seed: `free` of any pull, pulled open (`plus`) and closed (`minus`).

    `losses` and `means` are the targets' loss and the mean gate at every update of the three fits;
    `moved` is how far a gate still moved in the last third, mean over heads. `nll` is the loss on
    all fitted prompts with the final gates, `ungated` that of the model without gates. `steepest`
    is the largest slope of the loss that any gate's logit had in the free fit.
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
    steepest: Float[Tensor, " seed"] | None = None

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
    def agreement(self) -> Float[Tensor, "layer head"]:
        """The share of seeds that agree on the head's role: that of its most frequent one."""
        return torch.stack([self.has(role).float().mean(0) for role in ROLES]).amax(0)

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
        """Signs that a fit has not converged, or that the loss does not see the gates."""
        steep = self.steepest
        found = [
            unfinished(fit, self.losses[i], self.moved[i], self.nll[i], self.ungated, steep)
            for i, fit in enumerate(FITS)
        ]
        return tuple(dict.fromkeys(words for words in found if words))

    @property
    def headline(self) -> dict[str, Any]:
        """The share of heads with each role, and the loss with and without gates."""
        return {
            **{f"share_{role}": share for role, share in self.shares().items()},
            "seeds_agree": self.agreement.mean().item(),
            "heads_all_seeds_agree_on": int((self.agreement == 1).sum()),
            "nll_ungated": self.ungated,
            **{f"nll_{fit}": self.nll[i].mean().item() for i, fit in enumerate(FITS)},
            "batch": self.settings["batch"],
        }

    @property
    def sentence(self) -> str:
        """The shares as a sentence."""
        shares = self.shares()
        parts = ", ".join(f"{shares[role]:.0%} {NAMES[role]}" for role in shares)
        seeds = len(self.plus)
        agreed = f" All {seeds} seeds agree on {self.headline['heads_all_seeds_agree_on']} of them."
        return f"{self.name}: of {self.plus[0].numel()} heads, {parts}.{agreed * (seeds > 1)}"


@dataclass(frozen=True)
class HeadRoles:
    """The role of every head, the share of seeds that agree on it, and its gain on every prompt.

    `names` are the roles in the order of layers and heads, empty where no role has most seeds.
    `gain` is the log probability (nats) of the target with the head's gate open, less that with it
    closed, all other gates at their mean G+: above 0 for a head that helps, below 0 for one that
    interferes, about 0 for one that does not matter or that others stand in for. The prompts are
    others than those that the gates were fitted to if `held_out`.
    """

    names: tuple[str, ...]
    agreement: Float[Tensor, "layer head"]
    gain: Float[Tensor, "prompt layer head"]
    held_out: bool = True

    def check(self) -> None:
        """Raise a ValueError if stored roles cannot be ours."""
        if len(self.names) != self.agreement.numel() or set(self.names) - {"", *NAMES.values()}:
            raise ValueError("it has unknown roles, or not one for every head")

    def columns(self) -> dict[str, Any]:
        """role, seeds_agree, gain, gain_low, gain_high: a row per head.

        The ends are those of the 95% interval of the mean gain, over prompts.
        """
        low, high = bootstrap(self.gain)
        numbers = {
            "seeds_agree": self.agreement,
            "gain": self.gain.mean(0),
            "gain_low": low,
            "gain_high": high,
        }
        columns = {name: values.flatten().tolist() for name, values in numbers.items()}
        return {"role": list(self.names), **columns}

    def frame(self) -> "pd.DataFrame":
        """A tidy frame: layer, head and the columns."""
        frame = tidy(("layer", "head"), {"seeds_agree": self.agreement})[["layer", "head"]]
        return frame.assign(**self.columns())

    def text(self, layer: int, head: int) -> str:
        """The role and how many seeds agree on it, for a figure."""
        role = self.names[layer * self.agreement.shape[1] + head] or "no role"
        return f"{role} ({float(self.agreement[layer, head]):.0%} of seeds agree)"


def blind(steepest: Float[Tensor, " seed"]) -> Bool[Tensor, " seed"]:
    """Whether no gate's logit can move: the largest slope is far below Adam's epsilon."""
    return steepest < FLAT


def tenth_of(updates: int) -> int:
    """A tenth of the updates."""
    return updates // 10


def unfinished(
    fit: str,
    losses: Float[Tensor, "seed update"],
    moved: Float[Tensor, " seed"],
    nll: Float[Tensor, " seed"] | None = None,
    ungated: float = 0.0,
    steepest: Float[Tensor, " seed"] | None = None,
) -> str | None:
    """Why a fit needs more updates, or None; every seed is checked separately.

    The gates of a pulled fit must have converged. A free fit must not end with an nll far above
    that of the ungated model, or with a loss that still falls. More updates do not help a seed
    whose loss never had a slope: `steepest` says so first.
    """
    if steepest is not None and (lost := blind(steepest)).any():
        return (
            f"gating cannot see this model with {int(lost.sum())} of {len(lost)} seeds: the loss "
            "passes no gradient to any gate. Use the method patch."
        )
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
