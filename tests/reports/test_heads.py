from typing import Any

import pytest

from mechheads.observe.patterns import attend
from mechheads.reports.heads import draw_patterns_by_head, draw_patterns_summed

TEXT = "Then, Mary and John gave <b>it</b> & went"


def test_the_figures_hold_every_model_and_head(tiny):
    patterns = attend(tiny, TEXT)
    sums: Any = draw_patterns_summed([patterns, patterns])
    assert len(sums.data) == 2
    first, last = sums.data[0].z[0], sums.data[0].z[-1]
    assert first[0] == pytest.approx(8.0)  # the first token attends to itself in all heads
    assert all(value is None for value in first[1:])
    assert sum(v for v in last if v) == pytest.approx(8.0, rel=1e-4)
    heads: Any = draw_patterns_by_head([patterns, patterns])
    assert len(heads.data) == 16
