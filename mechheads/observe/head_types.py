"""Scores heads as well-known types by what they attend to on repeated random tokens.

- previous token: the token just before;
- duplicate token: the earlier occurrence of the same token;
- induction: the token after that occurrence, which comes next again (Olsson et al. 2022).
Each score is the mean attention weight there, from 0 to 1.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.errors import MechheadsError
from mechheads.heads import name_of
from mechheads.models.hooks import with_patterns
from mechheads.models.model import Model, encoder_of, model_name, shape_of
from mechheads.options import check_least
from mechheads.runs.frames import tidy
from mechheads.runs.result import Result

if TYPE_CHECKING:
    import pandas as pd

KINDS = ("previous token", "duplicate token", "induction")


@dataclass(frozen=True)
class HeadTypes(Result):
    """Every head's score for each head type."""

    model: str
    scores: Mapping[str, Float[Tensor, "layer head"]]

    def label(self, layer: int, head: int, threshold: float = 0.4) -> str:
        """The type that fits the head best, or an empty string if none does."""
        score, kind = max((float(self.scores[kind][layer, head]), kind) for kind in self.scores)
        return kind if score >= threshold else ""

    @property
    def headline(self) -> dict[str, Any]:
        """The strongest head of each type, and its score."""
        heads = next(iter(self.scores.values())).shape[1]
        best = {kind: divmod(int(found.argmax()), heads) for kind, found in self.scores.items()}
        return {
            kind: {"head": name_of(*head), "score": float(self.scores[kind][head])}
            for kind, head in best.items()
        }

    @property
    def sentence(self) -> str:
        """The headline as a sentence."""
        listed = [f"{kind} {b['head']} ({b['score']:.2f})" for kind, b in self.headline.items()]
        return f"Strongest heads of {self.model} by type: {', '.join(listed)}."

    def frame(self) -> "pd.DataFrame":
        """A tidy frame: layer, head, and a column per type."""
        return tidy(("layer", "head"), self.scores)


@torch.inference_mode()
def head_types(model: Model, *, length: int = 24, rows: int = 8, seed: int = 0) -> HeadTypes:
    """Score every head as a previous-token, duplicate-token and induction head.

    Args:
        model: what `mechheads.load` returns
        length: number of random tokens that are repeated
        rows: number of sequences
        seed: seed of the random tokens

    Returns:
        HeadTypes: mean attention weights from 0 to 1, one table per type. Costs one forward pass.

    >>> import mechheads
    >>> sorted(mechheads.head_types(mechheads.load("mini")).scores)
    ['duplicate token', 'induction', 'previous token']
    """
    check_least("rows", rows, 1)
    check_least("length", length, 4)
    tokenizer = encoder_of(model).tokenizer
    first = [tokenizer.bos_token_id] if tokenizer and encoder_of(model).prepend_bos else []
    length = min(length, (shape_of(model).context - len(first)) // 2)
    if length < 4:
        raise MechheadsError(
            f"{model_name(model)} takes only {shape_of(model).context} tokens, too few to repeat "
            "any. Load it with a larger n_ctx if it allows one."
        )
    special = set(tokenizer.all_special_ids) if tokenizer else set()
    usual = sorted(set(range(shape_of(model).vocabulary)) - special)
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.tensor(usual)[torch.randint(len(usual), (rows, length), generator=generator)]
    begin = torch.tensor(first).long().expand(rows, -1)
    tokens = torch.cat([begin, drawn, drawn], dim=1)
    later = torch.arange(len(first) + length, tokens.shape[1])
    targets = {
        "previous token": later - 1,
        "duplicate token": later - length,
        "induction": later - length + 1,
    }
    scores = {kind: torch.zeros(shape_of(model).grid) for kind in KINDS}

    def see(layer: int, pattern: Float[Tensor, "row head query key"]) -> None:
        for kind, keys in targets.items():
            scores[kind][layer] = pattern[:, :, later, keys].mean((0, 2)).cpu()

    with_patterns(model, tokens, see)
    return HeadTypes(model_name(model), scores)
