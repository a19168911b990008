"""Notices logits that are not numbers, before they become results."""

from jaxtyping import Float
from torch import Tensor

from mechheads.errors import MechheadsError


def check_logits(name: str, logits: Float[Tensor, "..."]) -> None:
    """Raise if a logit is NaN or plus infinity; minus infinity only rules a token out."""
    if bool((logits.isnan() | logits.isposinf()).any()):
        kind = str(logits.dtype).removeprefix("torch.")
        raise MechheadsError(
            f"{name} computes logits that are NaN or infinite in {kind}: its weights are damaged, "
            "or overflow in this dtype. Check the weights, or load it in float32."
        )
