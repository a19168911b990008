"""GELU by the tanh formula, with the slope computed along with the value.

0.5 x (1 + tanh(u / 2)) = x sigmoid(u), with u = x (C + D x^2). torch's own computes a tanh in the
forward and again in the backward pass, together a quarter of the time of a fit of gates; one
sigmoid for both takes a third of that. Used only where a gradient is wanted, on a CPU, in float32
and float64; otherwise it is torch's own.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

C = 2 * math.sqrt(2 / math.pi)
D = 0.044715 * C


def gelu_tanh(x: Tensor) -> Tensor:
    """GELU by the tanh formula."""
    kept = x.requires_grad and torch.is_grad_enabled() and x.device.type == "cpu"
    if kept and x.dtype in (torch.float32, torch.float64):
        return _Gelu.apply(x)
    return F.gelu(x, approximate="tanh")


class _Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        square = torch.mul(x, x)
        share = torch.mul(x, C).addcmul_(x, square, value=D).sigmoid_()
        out = share * x
        # The slope is share + out (1 - share) (C + 3 D x^2).
        bend = square.mul_(out).mul_(3 * D).add_(out, alpha=C)
        ctx.save_for_backward(bend.addcmul_(bend, share, value=-1).add_(share))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        (own,) = ctx.saved_tensors
        return slope * own
