"""Products with weights, x W + b, by the faster of torch's two libraries.

torch multiplies float32 matrices with MKL, which on AMD's processors leaves out AVX-512. oneDNN,
which torch has too, is twice as fast there: 220 instead of 100 GFLOP/s a core on an EPYC. Both
compute in float32 and differ by rounding. Which one is used depends only on the machine and on the
sizes, so the same settings give the same bytes.
"""

from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

# A matrix [into, out] and a bias.
Linear = tuple[Tensor, Tensor]
SMALL = 1 << 20  # multiplications; for fewer, calling oneDNN takes longer than it saves


def linear(
    x: Float[Tensor, "*rows into"],
    weight: Float[Tensor, "into out"],
    bias: Float[Tensor, " out"] | None,
) -> Float[Tensor, "*rows out"]:
    """x W + b in one call."""
    rows = x.flatten(0, -2)
    if _is_for_onednn(rows, weight, bias):
        if torch.is_grad_enabled() and rows.requires_grad:
            found: Any = _Product.apply(rows, weight, bias)
        else:
            found = _onednn(rows, weight.T, bias)
    else:
        found = rows @ weight if bias is None else torch.addmm(bias, rows, weight)
    return found.unflatten(0, x.shape[:-1])


def without_zeros(weights: Linear) -> tuple[Tensor, Tensor | None]:
    """The matrix, and None if its bias is zero, which then need not be added."""
    weight, bias = weights
    return weight, bias if bool(bias.any()) else None


class _Product(torch.autograd.Function):
    """x W + b with the gradient of x alone: for weights that have none."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.weight = weight
        return _onednn(x, weight.T, bias)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, None, None]:
        return _onednn(slopes[0].contiguous(), ctx.weight, None), None, None


def _onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x weight.T + bias."""
    bias = None if bias is None else bias.contiguous()  # oneDNN would read it as if it were
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def _is_for_onednn(rows: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    wanted = weight.requires_grad or (bias is not None and bias.requires_grad)
    return (
        rows.numel() * weight.shape[1] >= SMALL
        # oneDNN is a hundred times slower with a matrix cut out of a wider one, as in GPT-2.
        and (weight.is_contiguous() or weight.T.is_contiguous())
        and rows.dtype == weight.dtype == torch.float32
        and rows.device.type == weight.device.type == "cpu"
        and not (wanted and torch.is_grad_enabled())
        and mkl_is_slow()
        and bool(torch.backends.mkldnn.enabled)
    )


@lru_cache(maxsize=1)
def mkl_is_slow() -> bool:
    """Whether this is a processor of AMD with AVX-512, and torch has oneDNN."""
    try:
        maker = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return (
        "AuthenticAMD" in maker
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )
