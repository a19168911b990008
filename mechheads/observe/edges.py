"""Counts the attention edges that a model uses, per prompt, head and task.

An edge is a query position and a key position at or before it, in one head. A dense model uses all
of them, since a softmax never gives a weight of exactly 0; a sparse model uses those that its gates
leave open. With a threshold above 0, an edge is used if its weight exceeds it.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Int
from torch import Tensor

from mechheads.errors import MechheadsError
from mechheads.models.hooks import with_patterns
from mechheads.models.model import Model, encoder_of, model_name, shape_of
from mechheads.progress import bar
from mechheads.prompts import Prompts
from mechheads.runs.result import Result

if TYPE_CHECKING:
    import pandas as pd

LARGEST = 2**40  # edges of one head: a million tokens


@dataclass(frozen=True)
class EdgeCounts(Result):
    """Edges used on the clean prompts of a task; `possible` counts the causal edges of a head."""

    task: str
    model: str
    used: Int[Tensor, "prompt layer head"]
    possible: Int[Tensor, " prompt"]

    def check(self) -> None:
        """Raise a ValueError if stored counts are impossible."""
        most = self.possible[:, None, None]
        if int(self.possible.min()) < 1 or int(self.possible.max()) > LARGEST:
            raise ValueError("the number of possible edges is impossible")
        if int(self.used.min()) < 0 or bool((self.used > most).any()):
            raise ValueError("more edges are used than there are, or fewer than none")

    @property
    def density(self) -> float:
        """The share of causal edges that are used, over all heads and prompts."""
        heads = self.used.shape[1] * self.used.shape[2]
        return self.used.sum().item() / (self.possible.sum().item() * heads)

    @property
    def per_prompt(self) -> float:
        """Mean number of edges used per prompt."""
        return self.used.sum().item() / len(self.used)

    @property
    def live(self) -> int:
        """Number of heads that use an edge on any prompt."""
        return int((self.used.sum(0) > 0).sum())

    @property
    def headline(self) -> dict[str, Any]:
        """The key numbers."""
        return {"density": self.density, "per_prompt": self.per_prompt, "live_heads": self.live}

    @property
    def sentence(self) -> str:
        """The headline as a sentence."""
        heads = self.used.shape[1] * self.used.shape[2]
        return (
            f"{self.model} uses {self.density:.2%} of the causal attention edges on {self.task}, "
            f"{self.per_prompt:.1f} per prompt, in {self.live} of {heads} heads."
        )

    def frame(self) -> "pd.DataFrame":
        """A tidy frame: task, prompt (from 0), layer, head, used, possible."""
        import pandas as pd

        _, layers, heads = self.used.shape
        return pd.DataFrame(
            [
                (self.task, p, layer, head, int(self.used[p, layer, head]), int(self.possible[p]))
                for p in range(len(self.used))
                for layer in range(layers)
                for head in range(heads)
            ],
            columns=pd.Index(["task", "prompt", "layer", "head", "used", "possible"]),
        )


@torch.inference_mode()
def count_edges(
    model: Model, prompts: Prompts, *, threshold: float = 0.0, quiet: bool = False
) -> EdgeCounts:
    """Count the edges used on the clean prompts; one forward pass per prompt."""
    if not 0 <= threshold < 1:
        raise MechheadsError(f"threshold takes a weight from 0 to below 1, got {threshold}.")
    used = torch.zeros(len(prompts), *shape_of(model).grid, dtype=torch.long)
    possible = torch.zeros(len(prompts), dtype=torch.long)
    with bar(len(prompts), "Prompts counted", quiet) as progress:
        for i, pair in enumerate(prompts.pairs):
            ids = encoder_of(model).ids(pair.clean)
            possible[i] = len(ids) * (len(ids) + 1) // 2

            def count(layer: int, pattern: Tensor, prompt: int = i) -> None:
                used[prompt, layer] = (pattern[0] > threshold).sum(dim=(1, 2)).cpu()

            with_patterns(model, torch.tensor([ids]), count)
            progress.update()
    return EdgeCounts(prompts.task, model_name(model), used, possible)
