import re
from typing import Any

import pytest
import torch

from mechheads import MechheadsError
from mechheads.observe.patterns import attend, draw_heads, draw_sums
from mechheads.reports.page import Section, write_page

TEXT = "Then, Mary and John gave <b>it</b> & went"


def test_the_weights_are_those_of_the_pattern_hooks(tiny):
    patterns = attend(tiny, TEXT)
    with torch.inference_mode():
        _, cache = tiny.run_with_cache(tiny.to_tokens(TEXT))
    for layer in range(2):
        assert torch.equal(patterns.weights[layer], cache["pattern", layer][0])
    n = len(patterns.tokens)
    assert patterns.weights.shape == (2, 4, n, n)
    assert patterns.edges == patterns.possible == 8 * n * (n + 1) // 2


def test_the_figures_hold_every_model_and_head(tiny):
    patterns = attend(tiny, TEXT)
    sums: Any = draw_sums([patterns, patterns])
    assert len(sums.data) == 2
    first, last = sums.data[0].z[0], sums.data[0].z[-1]
    assert first[0] == pytest.approx(8.0)  # the first token attends to itself in all heads
    assert all(value is None for value in first[1:])
    assert sum(v for v in last if v) == pytest.approx(8.0, rel=1e-4)
    heads: Any = draw_heads([patterns, patterns])
    assert len(heads.data) == 16


def test_a_prompt_that_does_not_fit_is_refused(tiny):
    with pytest.raises(MechheadsError, match=r"takes 2 to 64\. Give another prompt"):
        attend(tiny, "Mary " * 100)


def test_a_page_is_whole_by_itself_and_escapes_what_it_is_given(tiny, tmp_path):
    patterns = attend(tiny, TEXT)
    sections = [
        Section("<script>alert(1)</script>", TEXT, draw_sums([patterns])),
        Section("again", figure=draw_heads([patterns]), table={"<i>": "<u>"}),
    ]
    page = write_page(tmp_path / "page.html", "<title>", sections).read_text()
    assert "<script>alert(1)" not in page
    assert "<b>it</b>" not in page
    assert "&lt;b&gt;it" in page
    assert "<i>" not in page.split("</script>")[-1]
    assert not re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=", page)
    assert page.count("<!doctype html>") == 1
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]
