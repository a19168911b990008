"""GELU by the tanh formula, with a gradient that reuses what the forward pass computed.

0.5 x (1 + tanh(u / 2)) = x sigmoid(u), with u = x (C + D x^2). torch's own computes tanh again in
its backward pass, which takes a quarter of the time of a fit of gates; here the sigmoid is kept,
and forward and backward pass together take a third as long. Used only where a gradient is wanted,
on a CPU, in float32 and float64; otherwise it is torch's own.
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
        share = torch.mul(x, x).mul_(D).add_(C).mul_(x).sigmoid_()
        ctx.save_for_backward(x, share)
        return share * x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        x, share = ctx.saved_tensors
        # share + x share' = share + (share - share^2) (C + 3 D x^2) x
        bend = torch.mul(x, x).mul_(3 * D).add_(C).mul_(x)
        return bend.mul_(torch.addcmul(share, share, share, value=-1)).add_(share).mul_(slope)
