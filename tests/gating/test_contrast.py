"""Contrastive gates keep one answer and lose the other."""

import torch
from gate_cases import write_words

from mechheads.gating.contrast import FLOOR, Side, contrast, contrast_loss
from mechheads.prompts import Pair, Prompts
from mechheads.scoring.gate_fitting import FitSettings


def test_the_contrastive_loss_stops_at_its_floor():
    """loss = kept + max(kept - lost, -5); only lost has a gradient through the second term."""
    kept = torch.tensor([1.0, 1.0], requires_grad=True)
    lost = torch.tensor([3.0, 7.0], requires_grad=True)
    loss = contrast_loss(kept, lost)
    assert loss.tolist() == [1.0 - 2.0, 1.0 - 5.0]
    loss.sum().backward()
    assert kept.grad is not None
    assert lost.grad is not None
    assert kept.grad.tolist() == [1.0, 1.0]
    assert lost.grad.tolist() == [-1.0, 0.0]
    assert FLOOR == -5


def test_contrast_keeps_one_answer_and_loses_the_other(checkpoint):
    """Two heads write one answer each, chosen by the prompt's last token being there or not."""
    writers = {(0, 0): (" Mary", 4.0), (1, 3): (" John", 4.0)}
    model = write_words(checkpoint("gpt2"), writers)
    sides = [
        Side(
            answer,
            *[
                Prompts(
                    "one",
                    "logprob",
                    tuple(
                        Pair(f"Then {a} gave", f"Then {b} gave", (f" {answer}",), ())
                        for a, b in (("Tom", "Anna"), ("Anna", "James"), ("James", "Tom"))
                    ),
                )
            ]
            * 2,
        )
        for answer in ("Mary", "John")
    ]
    recipe = FitSettings(seeds=2, updates=80, batch=3)
    for retain, forget, kept, lost in (
        (sides[0], sides[1], (0, 0), (1, 3)),
        (sides[1], sides[0], (1, 3), (0, 0)),
    ):
        trial = contrast(model, retain, forget, recipe, quiet=True)
        assert (trial.gates[(slice(None), *kept)] > 0.9).all()
        assert (trial.gates[(slice(None), *lost)] < 0.1).all()
        assert (trial.after[0] == 1).all()
        assert (trial.after[1] == 0).all()
        assert trial.warning is None
