"""The optimizer of the embedded model: equal to torch's own, but for its bfloat16."""

import pytest
import torch

from mechheads.training.muon import Muon, orthogonal


@pytest.mark.parametrize("shape", [(24, 24), (16, 48), (48, 16)])
def test_steps_equal_those_of_torch_in_float32(shape, monkeypatch):
    # Torch rounds to bfloat16, which kills the process where a CPU claims an AMX it does not have.
    monkeypatch.setattr(torch.Tensor, "bfloat16", lambda self: self)
    torch.manual_seed(0)
    ours = torch.nn.Parameter(torch.randn(shape))
    theirs = torch.nn.Parameter(ours.detach().clone())
    muon = Muon([{"params": [ours], "pieces": 1, "weight_decay": 0.1}], lr=0.02)
    reference = torch.optim.Muon(
        [theirs], lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"
    )
    for _ in range(3):
        before = ours.detach().clone()
        gradient = torch.randn(shape)
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        muon.step()
        reference.step()
        moved = (ours - before).norm()
        assert (ours - theirs).norm() < 1e-4 * moved
        assert moved > 0.01


def test_a_matrix_of_three_parts_moves_like_three_matrices():
    torch.manual_seed(0)
    whole = torch.nn.Parameter(torch.randn(12, 36))
    parts = [torch.nn.Parameter(part.clone()) for part in whole.detach().chunk(3, dim=1)]
    gradient = torch.randn(12, 36) * torch.tensor([1e-3, 1.0, 1e3]).repeat_interleave(12)
    whole.grad = gradient
    for part, piece in zip(parts, gradient.chunk(3, dim=1), strict=True):
        part.grad = piece.clone()
    Muon([{"params": [whole], "pieces": 3}], lr=0.02).step()
    Muon([{"params": parts, "pieces": 1}], lr=0.02).step()
    torch.testing.assert_close(whole, torch.cat([part.detach() for part in parts], dim=1))


def test_singular_values_come_near_one():
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonal(torch.randn(2, 16, 40)))
    assert values.min() > 0.6
    assert values.max() < 1.3


def test_groups_without_pieces_are_stepped_by_adamw():
    torch.manual_seed(0)
    ours = torch.nn.Parameter(torch.randn(5))
    theirs = torch.nn.Parameter(ours.detach().clone())
    gradient = torch.randn(5)
    ours.grad, theirs.grad = gradient.clone(), gradient.clone()
    Muon([{"params": [ours], "pieces": 0}], lr=0.1).step()
    torch.optim.AdamW([theirs], lr=0.1).step()
    assert torch.equal(ours, theirs)
