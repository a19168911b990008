"""Muon in float32: each matrix moves by an orthogonal step (Jordan 2024), the rest by AdamW.

1. The gradient of a matrix is averaged over steps, with Nesterov momentum.
2. Newton-Schulz iterations make all its singular values about 1, so that rare directions, which a
   head needs to find another token, are learned as fast as common ones.
3. The step is scaled to the size of an AdamW step.

`torch.optim.Muon` does the same in bfloat16, which is about ten times slower on a CPU, and cannot
split a joint matrix of queries, keys and values into its three parts.
"""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

COEFFICIENTS = (3.4445, -4.775, 2.0315)
MOMENTUM = 0.95


class Muon(torch.optim.AdamW):
    """AdamW for groups with `pieces` 0; otherwise a matrix is `pieces` matrices side by side."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Take one step; the gradients of matrices are cleared."""
        for group in self.param_groups:
            for parameter in group["params"] if group["pieces"] else ():
                if parameter.grad is not None:
                    self._step_matrix(parameter, group)
                    parameter.grad = None
        return super().step(closure)

    def _step_matrix(self, parameter: Tensor, group: dict[str, Any]) -> None:
        gradient = parameter.grad
        assert gradient is not None
        state = self.state[parameter]
        # AdamW expects a step in every state that it loads.
        state["step"] = state.get("step", torch.zeros(())) + 1
        average = state.setdefault("momentum", torch.zeros_like(parameter))
        average.lerp_(gradient, 1 - MOMENTUM)
        ahead = gradient.lerp(average, MOMENTUM)
        parts = torch.stack(ahead.chunk(group["pieces"], dim=1))
        size = 0.2 * math.sqrt(max(parts.shape[1:]))
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.sub_(group["lr"] * size * torch.cat(list(orthogonal(parts)), dim=1))


def orthogonal(matrices: Float[Tensor, "part row column"]) -> Float[Tensor, "part row column"]:
    """The matrices with all singular values moved to about 1 (0.7 to 1.2)."""
    a, b, c = COEFFICIENTS
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x.mT if tall else x
