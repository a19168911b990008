"""The activation with its slope computed along: torch's own, by value and by gradient."""

import pytest
import torch
from torch.nn import functional as F

from mechheads.models.backends.activations import gelu_tanh


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-6), (torch.float64, 1e-14)])
def test_values_and_slopes_are_those_of_torch(dtype, limit):
    x = torch.cat([torch.linspace(-40, 40, 20_001), torch.tensor([0.0, -1e4, 1e4])]).to(dtype)
    weights = torch.linspace(-1, 2, len(x), dtype=dtype)
    found, wanted = [], []
    for act, kept in ((gelu_tanh, found), (lambda x: F.gelu(x, approximate="tanh"), wanted)):
        leaf = x.clone().requires_grad_()
        out = act(leaf)
        kept += [out.detach(), *torch.autograd.grad(out, leaf, weights)]
        assert torch.equal(leaf.detach(), x)
    for one, two in zip(found, wanted, strict=True):
        assert ((one - two).abs() <= limit * two.abs().clamp(min=1.0)).all()


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
