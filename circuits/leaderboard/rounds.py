"""A round of a leaderboard: all methods on one model, one task and one sample of prompts."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from mechheads.scoring.statistics import bootstrap

RANDOM = "random"  # the baseline: random rankings instead of a method's


@dataclass(frozen=True)
class Round:
    """All methods on one model, one task and one sample of prompts, drawn with `seed`.

    `cpr` and `cmd` are written as means over the judging prompts, which spread as the numbers do
    between samples of them. `needed` is the fewest heads that reach the threshold; `auroc` is
    against the known heads, None if there are none; `passes` are forward passes per ranking prompt,
    as the table of methods counts them. Random rankings have the means of several draws.
    """

    model: str
    task: str
    seed: int
    metric: str
    heads: int
    ranked_on: int
    methods: tuple[str, ...]
    cpr: Float[Tensor, "method judged"]
    cmd: Float[Tensor, "method judged"]
    needed: Float[Tensor, " method"]
    passes: Float[Tensor, " method"]
    gap: Float[Tensor, " judged"]
    auroc: Float[Tensor, " method"] | None = None

    @property
    def pair(self) -> tuple[str, str]:
        """The model and the task."""
        return self.model, self.task

    @property
    def judged_on(self) -> int:
        """The number of judging prompts."""
        return len(self.gap)

    def values(self, name: str) -> Float[Tensor, " method"] | None:
        """A measure of every method; None if it is unknown here."""
        if name == "needed_share":
            return self.needed / self.heads
        found: Tensor | None = getattr(self, name)
        return found.mean(1) if found is not None and found.dim() == 2 else found

    def half_widths(self, name: str) -> Float[Tensor, " method"] | None:
        """Half of the 95% interval over judging prompts; None if the measure has none."""
        if name not in ("cpr", "cmd"):
            return None
        low, high = bootstrap(getattr(self, name).T)
        return (high - low) / 2

    def of(self, methods: tuple[str, ...], values: Float[Tensor, " all"]) -> Tensor:
        """The values of some methods, in their order."""
        return values[[self.methods.index(method) for method in methods]]


@dataclass(frozen=True)
class LeftOut:
    """A round, or one method of it, that could not be measured, and why."""

    model: str
    task: str
    seed: int
    why: str
    method: str = ""

    @property
    def what(self) -> str:
        """The round without its seed, or the method in it."""
        return f"{self.method and f'{self.method} on '}{self.model}, {self.task}"
