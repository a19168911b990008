"""What heads do when they do nothing: attention on the first token, and how much a head writes.

On the clean prompts, at every position after the first:

- first token: the attention weight on the first token, BOS where the model has one. A head with
  nothing to look for often rests there, on a sink (Xiao et al. 2023, arXiv:2309.17453).
- written: the length of what the head adds to the residual stream, z W_O, as a share of the length
  of the residual stream that its layer reads. A head that writes next to nothing is idle, whatever
  it attends to; a sink may still write something, the same everywhere.
"""

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.models.hooks import attention_inside, with_patterns
from mechheads.models.model import Model, encoder_of, model_name, shape_of
from mechheads.models.weights import output_weights
from mechheads.progress import bar
from mechheads.prompts import Prompts
from mechheads.runs.frames import tidy
from mechheads.runs.result import Result

if TYPE_CHECKING:
    import pandas as pd

SINK, IDLE = 0.5, 0.001  # more of the attention than this; less of the residual stream than this
TOKENS = 4096  # per pass


@dataclass(frozen=True)
class HeadActivity(Result):
    """Every head's attention weight on the first token, and what it writes, on a task's prompts."""

    task: str
    model: str
    first_token: Float[Tensor, "layer head"]
    written: Float[Tensor, "layer head"]

    def check(self) -> None:
        """Raise a ValueError if stored values are impossible."""
        weights = self.first_token
        if weights.shape != self.written.shape or bool((self.written < 0).any()):
            raise ValueError("its parts do not match, or a length is negative")
        if bool(((weights < 0) | (weights > 1.001)).any()):
            raise ValueError("an attention weight is not between 0 and 1")

    @property
    def headline(self) -> dict[str, Any]:
        """How many heads rest on the first token, and how many write next to nothing."""
        return {
            "heads": self.written.numel(),
            "sinks": int((self.first_token > SINK).sum()),
            "idle": int((self.written < IDLE).sum()),
        }

    @property
    def sentence(self) -> str:
        """The headline as a sentence."""
        found = self.headline
        return (
            f"{self.task} on {self.model}: {found['sinks']} of {found['heads']} heads have more "
            f"than {SINK:.0%} of their attention on the first token (sinks), {found['idle']} write "
            f"less than {IDLE:.1%} of the length of the residual stream (idle)."
        )

    def frame(self) -> "pd.DataFrame":
        """A tidy frame: layer, head, first_token, written."""
        columns = {"first_token": self.first_token, "written": self.written}
        return tidy(("layer", "head"), columns)


@torch.inference_mode()
def head_activity(model: Model, prompts: Prompts, *, quiet: bool = False) -> HeadActivity:
    """How much every head attends to the first token, and how much it writes.

    Args:
        model: what `mechheads.load` returns
        prompts: what `tasks.make` returns; their clean prompts are run
        quiet: show no progress bar

    Returns:
        HeadActivity: `first_token`, a mean attention weight from 0 to 1, and `written`, a mean
        length as a share of that of the residual stream (above 1 if a head writes more than it
        reads; before any norm between heads and stream). Costs two forward passes per prompt.

    >>> import mechheads, tasks
    >>> model = mechheads.load("mini")
    >>> found = mechheads.head_activity(model, tasks.make("ioi", model, n=8), quiet=True)
    >>> found.first_token.shape == found.written.shape == (4, 8)
    True
    """
    layers = shape_of(model).layers
    weights, lengths = torch.zeros(2, *shape_of(model).grid)
    squares = [output_weights(model, layer).float() for layer in range(layers)]
    squares = [weight @ weight.mT for weight in squares]  # |z W_O|^2 is z (W_O W_O^T) z^T
    rows: dict[int, list[tuple[int, ...]]] = defaultdict(list)
    for pair in prompts.pairs:
        ids = encoder_of(model).ids(pair.clean)
        rows[len(ids)].append(ids)
    count = sum((length - 1) * len(same) for length, same in rows.items())

    def see(layer: int, pattern: Float[Tensor, "row head query key"]) -> None:
        weights[layer] += pattern[:, :, 1:, 0].float().sum((0, 2)).cpu()

    with bar(len(prompts), "Prompts observed", quiet) as progress:
        for length, same in rows.items():
            for tokens in torch.tensor(same).split(max(1, TOKENS // length)):
                with_patterns(model, tokens, see)
                entering, outputs = attention_inside(model, tokens)
                for layer, (residual, z) in enumerate(zip(entering, outputs, strict=True)):
                    z, reads = z[:, 1:].float(), residual[:, 1:].float().norm(dim=-1, keepdim=True)
                    squared = torch.einsum("bphd,hde,bphe->bph", z, squares[layer], z)
                    share = squared.clamp(min=0).sqrt() / reads.clamp(min=1e-30)
                    lengths[layer] += share.sum((0, 1)).cpu()
                progress.update(len(tokens))
    return HeadActivity(prompts.task, model_name(model), weights / count, lengths / count)
