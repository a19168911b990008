import pytest
import torch

from mechheads import MechheadsError
from mechheads.observe.patterns import attend

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


def test_a_prompt_that_does_not_fit_is_refused(tiny):
    with pytest.raises(MechheadsError, match=r"takes 2 to 64\. Give another prompt"):
        attend(tiny, "Mary " * 100)
