"""The activation with its slope computed along: torch's own, by value and by gradient."""

import pytest
import torch
from torch.nn import functional as F

from mechheads.models.backends.activations import gelu_tanh


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 4e-6), (torch.float64, 4e-14)])
def test_values_and_slopes_are_those_of_torch_in_double_precision(dtype, limit):
    x = torch.cat([torch.linspace(-40, 40, 20_001), torch.tensor([0.0, -1e4, 1e4])]).to(dtype)
    found, wanted = x.clone().requires_grad_(), x.double().requires_grad_()
    value, exact = gelu_tanh(found), F.gelu(wanted, approximate="tanh")
    assert torch.equal(found.detach(), x)
    assert ((value - exact).abs() <= limit * exact.abs().clamp(min=1.0)).all()
    (slope,), (right,) = (
        torch.autograd.grad(y.sum(), leaf) for y, leaf in ((value, found), (exact, wanted))
    )
    assert ((slope - right).abs() <= limit).all()


def test_the_slope_is_that_of_finite_differences():
    x = torch.linspace(-6, 6, 50, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(gelu_tanh, x)


def test_without_gradients_it_is_torch_to_the_last_bit():
    x = torch.randn(1000) * 3
    wanted = F.gelu(x, approximate="tanh")
    assert torch.equal(gelu_tanh(x), wanted)
    with torch.no_grad():
        assert torch.equal(gelu_tanh(x.requires_grad_()), wanted)
    half = torch.randn(9, dtype=torch.bfloat16, requires_grad=True)
    assert torch.equal(gelu_tanh(half), F.gelu(half, approximate="tanh"))
