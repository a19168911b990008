"""One function's heads masked, another tested; both orders of functions compared."""

import pytest
import torch
from masking_cases import names_questions

from mechheads.masking.answers import mask_heads
from mechheads.masking.matrix import Matrix, compare_orders, cross_mask
from mechheads.metrics import text as quality
from mechheads.models.load import load


def test_the_matrix_of_two_functions(checkpoint):
    model = load(str(checkpoint("gpt2")))
    sets = [names_questions("one"), names_questions("two")]
    ranking = [(i, j) for i in range(2) for j in range(4)]
    found = cross_mask(
        model,
        sets,
        {"one": ranking, "two": ranking[::-1]},
        2,
        quality.find("chrf"),
        draws=2,
        max_tokens=3,
        quiet=True,
    )
    assert found.values.shape == (2, 2)
    torch.testing.assert_close(
        torch.stack([found.lost[name].mean(1) for name in found.tested], dim=1),
        found.random - found.values,
    )
    single = mask_heads(
        model, sets[1], ranking, [2], [quality.find("chrf")], draws=0, max_tokens=3, quiet=True
    )
    assert found.values[0, 1].item() == pytest.approx(single.values[1, 0].mean().item())
    assert found.whole[1].item() == pytest.approx(single.values[0, 0].mean().item())
    part = found.part(["one"], ["two"])
    assert isinstance(part, Matrix)
    assert part.values.shape == (1, 1)
    assert found.part(["three"], ["two"]) is None
    assert set(found.frame().columns) >= {"lost", "low", "high"}


def test_the_two_orders_are_compared_with_an_interval():
    def matrix(masked: str, tested: str, lost: list[float]) -> Matrix:
        cell = torch.zeros(1, 1)
        return Matrix(
            (masked,),
            (tested,),
            1,
            "exact",
            "",
            cell,
            cell,
            cell[0],
            {tested: torch.tensor([lost])},
        )

    found = compare_orders(
        matrix("low", "high", [0.5] * 4), matrix("high", "low", [0.0, 0.2, 0.0, 0.2])
    )
    assert found.up == pytest.approx((0.5, 0.5, 0.5))
    assert found.down[0] == pytest.approx(0.1)
    assert found.difference[0] == pytest.approx(0.4)
    assert found.difference[1] < 0.4 < found.difference[2]
    assert "0.50 (0.50 to 0.50)" in found.sentence
