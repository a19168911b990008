import pytest
import torch

from mechheads import metrics


def test_a_wrong_shape_is_rejected_in_tests():
    flags = torch.ones(2, 3, dtype=torch.bool)
    with pytest.raises(Exception, match="Type-check error"):
        metrics.Scores(torch.zeros(2, 4), flags, flags, flags, torch.zeros(2, 3).long())
