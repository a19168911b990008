"""Do gates and patching find the same heads?"""

import warnings
from dataclasses import dataclass
from typing import Any, ClassVar

from scipy import stats

from mechheads.scoring.effects import HeadEffects
from mechheads.scoring.gate_roles import Gates


@dataclass(frozen=True)
class Agreement:
    """Gating compared with patching.

    Rank correlation of facilitation with the patching effect, and Welch's t of facilitation between
    the heads that patching finds significant and the rest.
    """

    NOT_FINITE: ClassVar = ("correlation", "correlation_p", "t", "t_p")

    correlation: float
    correlation_p: float
    significant: int
    t: float
    t_p: float

    @property
    def headline(self) -> dict[str, float]:
        """For result.json."""
        return {
            "rank_correlation": self.correlation,
            "rank_correlation_p": self.correlation_p,
            "patching_significant_heads": self.significant,
            "welch_t": self.t,
            "welch_p": self.t_p,
        }

    @property
    def table(self) -> dict[str, str]:
        """For a report."""
        welch = "not defined: one of the groups has fewer than two heads"
        if self.t == self.t:
            welch = f"t = {self.t:.2f}, p = {self.t_p:.2g}"
        return {
            "Rank correlation of facilitation and patching effect (Spearman)": (
                f"{self.correlation:.2f}, p = {self.correlation_p:.2g}"
            ),
            "Heads that patching finds significant (corrected p < 0.05)": str(self.significant),
            "Facilitation of these vs. all others (Welch's t-test)": welch,
        }


def agreement(found: Gates, effects: HeadEffects) -> Agreement:
    """Compare gates with patching effects on the same task."""
    facilitation = found.facilitation.mean(0).flatten().double().numpy()
    effect = effects.scores.flatten().double().numpy()
    chosen = (effects.p_values < 0.05).flatten().numpy()
    t = t_p = float("nan")
    with warnings.catch_warnings():
        # Heads pulled to the limit all have the same score, which scipy warns about.
        warnings.simplefilter("ignore", RuntimeWarning)
        ranks: Any = stats.spearmanr(facilitation, effect)
        if min(chosen.sum(), (~chosen).sum()) > 1:
            groups = facilitation[chosen], facilitation[~chosen]
            welch: Any = stats.ttest_ind(*groups, equal_var=False)
            t, t_p = float(welch.statistic), float(welch.pvalue)
    return Agreement(float(ranks.statistic), float(ranks.pvalue), int(chosen.sum()), t, t_p)
