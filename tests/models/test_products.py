"""Products with weights: which of torch's libraries computes them."""

import pytest
import torch

from mechheads.models.backends import products


@pytest.mark.parametrize("turned", [False, True])
def test_a_matrix_cut_out_of_a_wider_one_does_not_go_to_onednn(turned, monkeypatch):
    """There it takes a hundred times as long."""
    monkeypatch.setattr(products, "mkl_is_slow", lambda: True)
    went: list[tuple[int, ...]] = []

    def onednn(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        went.append(tuple(weight.shape))
        return torch.nn.functional.linear(x, weight, bias)

    monkeypatch.setattr(products, "_onednn", onednn)
    x, wide, bias = torch.randn(256, 128), torch.randn(128, 384), torch.randn(128)
    whole = wide[:, :128].clone()
    whole, cut = (whole.T.clone().T, wide[:, :128]) if turned else (whole, wide[:, :128])
    wanted = torch.addmm(bias, x, cut)
    torch.testing.assert_close(products.linear(x, cut, bias), wanted)
    assert not went
    torch.testing.assert_close(products.linear(x, whole, bias), wanted)
    assert went == [(128, 128)]
